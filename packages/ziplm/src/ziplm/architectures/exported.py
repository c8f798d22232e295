"""Exported files as models: ONNX and OpenVINO files that are called, evaluated and timed like checkpoints."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import latency_profiler
import torch
from latency_profiler import LoadedModel, load_onnx, load_openvino
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.utils.generic import ModelOutput

from ziplm.architectures.checkpoint import load, read_config
from ziplm.architectures.untrusted import reported
from ziplm.errors import BadCheckpoint, MissingExtra, UsageError

LOADERS: dict[str, Callable[[Path, int | None], LoadedModel]] = {".onnx": load_onnx, ".xml": load_openvino}
"""How files of each format are loaded, by their ending."""

EXTRAS = {".onnx": "onnx", ".xml": "openvino"}

PLACES = ("*.onnx", "onnx/*.onnx", "openvino_model*.xml", "openvino/*.xml")
"""Where exported files are in a folder."""

LANGUAGE_MODELS = ("LMHeadModel", "ForCausalLM", "ForMaskedLM")
"""Endings of the names of classes with a language head."""

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")

ENCODER_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
DECODER_INPUTS = {"input_ids", "attention_mask", "position_ids"}
PAST, PRESENT = "past_key_values.", "present."
"""How the names of the cache's inputs and outputs begin."""


@dataclass
class Outputs(ModelOutput):
    """The outputs of an exported model that its file has; None for the others.

    Attributes:
        logits: (batch, classes), (batch, tokens, classes) or (batch, tokens, vocabulary).
        start_logits: (batch, tokens).
        end_logits: (batch, tokens).
        last_hidden_state: (batch, tokens, hidden).
        past_key_values: the cache after the call.
    """

    logits: torch.Tensor | None = None
    start_logits: torch.Tensor | None = None
    end_logits: torch.Tensor | None = None
    last_hidden_state: torch.Tensor | None = None
    past_key_values: DynamicCache | None = None


class ExportedModel(PreTrainedModel):
    """An exported file that is called like a model of transformers: tensors by name in, named outputs out.

    Args:
        config: config of the checkpoint that was exported.
        loaded: the file, loaded into its engine.
        file: the file.
    """

    main_input_name = "input_ids"
    runs_a_file = True

    def __init__(self, config: PreTrainedConfig, loaded: LoadedModel, file: Path) -> None:
        config = copy.deepcopy(config)
        config._attn_implementation = "eager"  # others would be looked up in this class
        super().__init__(config)
        self.loaded, self.file = loaded, file
        self.eval()

    @property
    def engine(self) -> str:
        """Name of the engine."""
        return self.loaded.engine

    @property
    def threads(self) -> int:
        """Number of threads that compute."""
        return self.loaded.threads

    @property
    def base_model(self) -> Any:
        """The part that tasks ask for hidden states: the model itself, or see `LogitsAsStates`."""
        names = self.config.architectures or [""]
        return LogitsAsStates(self) if names[0].endswith(LANGUAGE_MODELS) else self

    @property
    def device(self) -> torch.device:
        """The CPU: exported files run there."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the outputs; weights may be stored as int8."""
        return torch.float32

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        **_: Any,
    ) -> Outputs:
        """Run the file on tokens and masks, (batch, tokens). A missing mask means that nothing is padding."""
        made: dict[str, Any] = self._run(
            {
                "input_ids": input_ids,
                "attention_mask": torch.ones_like(input_ids) if attention_mask is None else attention_mask,
                "token_type_ids": torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids,
            }
        )
        return Outputs(**made)

    def _run(self, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the file on those of the values that are inputs of it, and return its outputs by name."""
        known = {name: values[name] for name in self.loaded.inputs}
        with reported(f"{self.file} cannot be run", "export its checkpoint again"):
            return {name: torch.from_numpy(array) for name, array in self.loaded.run(known).items()}


class ExportedDecoder(ExportedModel, GenerationMixin):
    """An exported language model with a cache, which can `generate`."""

    def __init__(self, config: PreTrainedConfig, loaded: LoadedModel, file: Path) -> None:
        super().__init__(config, loaded, file)
        # The file takes the keys of all earlier tokens, and itself masks those outside of a sliding window.
        # `generate` would make a cache that drops them, and with them the count of tokens.
        self.config.sliding_window = self.config.layer_types = None

    def forward(  # type: ignore[override]  # without segments, with a cache
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        **_: Any,
    ) -> Outputs:
        """Run the file on tokens (batch, tokens) after those in the cache, which is extended in place.

        The mask, (batch, earlier and new tokens), is 0 at padding; positions follow from it.
        """
        batch, tokens = input_ids.shape
        cache = DynamicCache() if past_key_values is None else past_key_values
        past = cache.get_seq_length()
        if attention_mask is None:
            attention_mask = input_ids.new_ones(batch, past + tokens)
        if position_ids is None:
            position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens:]
        values = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        made = self._run({**values, **self._past(cache, batch)})
        logits = made.pop("logits")
        _extend(cache, list(made.values()), logits)
        return Outputs(logits=logits, past_key_values=cache)

    def _past(self, cache: Any, batch: int) -> dict[str, torch.Tensor]:
        """Return keys and values of earlier tokens by the names of their inputs; there may be none."""
        names = [name for name in self.loaded.inputs if name.startswith(PAST)]
        if cache.get_seq_length() == 0:
            shapes = self.loaded.input_shapes  # (batch, heads, past tokens, head size)
            return {name: torch.zeros(batch, shapes[name][1] or 1, 0, shapes[name][3] or 1) for name in names}
        tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        return dict(zip(names, tensors, strict=False))


class LogitsAsStates:
    """The body of an exported language model, whose file includes the head.

    Its logits stand for the hidden states, and the language head is the identity; see `language_head`.
    """

    def __init__(self, model: ExportedModel) -> None:
        self.model = model

    def __call__(self, **inputs: Any) -> Outputs:
        """Return the logits as last hidden state."""
        return Outputs(last_hidden_state=self.model(**inputs).logits)


def _extend(cache: Any, present: Sequence[torch.Tensor], logits: torch.Tensor) -> None:
    """Put the keys and values of all tokens into a cache.

    If the model has no attention, the cache only counts the tokens.
    """
    if not present:
        mark = logits[:, None, :, :1]
        cache.update(mark, mark, 0)
        return
    for index in range(len(present) // 2):
        keys, values = present[2 * index], present[2 * index + 1]
        if len(cache.layers) <= index or not cache.layers[index].is_initialized:
            cache.update(keys, values, index)
        else:
            cache.layers[index].keys, cache.layers[index].values = keys, values


def open_model(path: str | Path, *, threads: int | None = None, **options: Any) -> PreTrainedModel:
    """Load a checkpoint (see `ziplm.load`), or an exported file or a folder with one.

    Args:
        path: a folder, a file that ends in .onnx or .xml, or a name on the hub.
        threads: threads of an exported file's engine; None for torch's own number.
        options: options of `from_pretrained` for checkpoints; exported files have none.
    """
    file = exported_file(path)
    if file is None:
        return load(path, **options)
    return load_exported(file, threads)


def load_exported(
    file: Path, threads: int | None = None, config: PreTrainedConfig | None = None
) -> ExportedModel:
    """Load an exported file into the engine of its format.

    Args:
        file: a file that ends in .onnx or .xml.
        threads: threads of the engine; None for torch's own number.
        config: config of its checkpoint; None for the one beside the file.
    """
    config = read_config(home_of(file)) if config is None else config
    if file.suffix == ".xml" and not file.with_suffix(".bin").is_file():  # OpenVINO may end the process
        raise BadCheckpoint(
            f"there is no file {file.with_suffix('.bin')} with the weights", "export it again"
        )
    try:
        loaded = LOADERS[file.suffix](file, threads)
    except latency_profiler.MissingExtra as error:
        raise MissingExtra(error.message, f"run: pip install 'ziplm[{EXTRAS[file.suffix]}]'") from None
    except latency_profiler.EngineError as error:
        raise BadCheckpoint(error.message, "export its checkpoint again") from error
    _check_names(loaded, file)
    return (ExportedDecoder if "position_ids" in loaded.inputs else ExportedModel)(config, loaded, file)


def _check_names(loaded: LoadedModel, file: Path) -> None:
    """Raise BadCheckpoint if a file does not have the inputs and outputs of an exported model."""
    inputs, outputs = set(loaded.inputs), set(loaded.outputs)
    if "position_ids" in inputs:
        others = {name for name in inputs - DECODER_INPUTS if not name.startswith(PAST)}
        others |= {name for name in outputs - {"logits"} if not name.startswith(PRESENT)}
        complete = "logits" in outputs
    else:
        names = {field.name for field in fields(Outputs)} - {"past_key_values"}
        others, complete = (inputs - ENCODER_INPUTS) | (outputs - names), bool(outputs)
    if others or not complete or "input_ids" not in inputs:
        raise BadCheckpoint(
            f"{file} takes {', '.join(loaded.inputs)} and gives {', '.join(loaded.outputs)}",
            "give a file that `ziplm export` has written",
        )


def exported_file(path: str | Path) -> Path | None:
    """Return the exported file that a path stands for; None if it stands for a checkpoint.

    Raises:
        BadCheckpoint: if there is no such file.
        UsageError: if a folder has several exported files, and no checkpoint.
    """
    given = Path(path)
    if given.suffix in LOADERS:
        if not given.is_file():
            raise BadCheckpoint(f"there is no file {given}", "give an exported file that exists")
        return given
    if not given.is_dir() or any(next(given.glob(pattern), None) for pattern in WEIGHTS):
        return None
    found = sorted(file for pattern in PLACES for file in given.glob(pattern))
    if len(found) > 1:
        names = ", ".join(str(file.relative_to(given)) for file in found[:4])
        raise UsageError(f"{given} has several exported files: {names}", "give one of them")
    return found[0] if found else None


def files_of(path: Path) -> list[Path]:
    """Return an exported file and the file with its weights, if there is one."""
    return [file for file in (path, path.with_suffix(".bin"), Path(f"{path}.data")) if file.is_file()]


def home_of(path: str | Path) -> str:
    """Return the folder of the config and the tokenizer that belong to a checkpoint or an exported file."""
    file = exported_file(path)
    if file is None:
        return str(path)
    for folder in (file.parent, file.parent.parent):
        if (folder / "config.json").is_file():
            return str(folder)
    raise BadCheckpoint(
        f"there is no config.json beside {file} or in the folder above",
        "put the config and the tokenizer of its checkpoint there",
    )
