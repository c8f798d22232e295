"""What a run is asked to do: every option with its default, as TOML and back."""

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from ziplm.benchmarking import Setting
from ziplm.errors import UsageError, one_line
from ziplm.files import written_whole
from ziplm.option_values import as_kind, parsed_settings, require
from ziplm.presets import find_preset
from ziplm.tasks.base import Source

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SPEEDS = {"speedup": "speedup", "latency_ms": "latency", "recover": "recover"}  # and the target's kind
LIMITS = ("params", "flops", "bytes", "sparsity")
TARGETS = (*SPEEDS, *LIMITS)
PRIORS = ("auto", "factored", "scalar", "exact", "stream", "own")
SELECTIONS = ("obs", "scores-once", "activation", "magnitude")
COUNTS = (
    "calibration_samples",
    "search_samples",
    "batch_size",
    "sequence_length",
    "threads",
    "max_length",
    "round_to",
    "new_tokens",
    "calibration_batch_size",
    "train_batch_size",
    "gradient_accumulation",
)
DENSE = ("dense_epochs", "dense_steps")
WEIGHTS = ("task_weight", "logit_weight", "token_weight")
SEARCHES = ("direct", "evolution", "ziplm", "prior", "uniform")
# The paper's own configuration, where nothing else is said.
PAPER = {
    "gradients": False,
    "centred": False,
    "prior": "own",
    "search": "ziplm",
    "evaluations": 1000,
    "refit": False,
}


@dataclass(frozen=True)
class Config:
    """All options of `compress`. Only `model`, `task` and a target have no default that will do.

    Attributes:
        model: a folder or a name on the hub.
        task: a name of `ziplm.tasks`.
        output: the run folder.
        task_option: settings of the task, such as "pooling=cls" or "stride=64".
        speedup: targets, times as fast as the dense model.
        latency_ms: targets, milliseconds for a forward pass.
        recover: targets, shares of the metric to keep: the fastest model that does.
        params: limits, parameters of the layers; a target of their own without a speed, else kept as well.
        flops: limits, floating point operations of a forward pass, of the layers.
        bytes: limits, of the weights of the layers in the measured dtype.
        sparsity: limits, share of the layers' parameters that must go.
        round_to: widths are multiples of this; heads are not touched.
        uniform: whether all layers get the same size, for engines that need that.
        train_file: examples to calibrate on, instead of the task's own.
        validation_file: examples to evaluate on.
        eval_file: the same, to evaluate on something else.
        text_column: names of one or two columns of text.
        label_column: name of the column with labels.
        max_length: longest example in tokens; None: the sequence length.
        device: such as cpu or cuda:0.
        threads: of torch while measuring; None: as many as torch has.
        dtype: float32, float16 or bfloat16, of the measured models.
        batch_size: of the measured inputs; None: 8, or 1 for latency and generate.
        sequence_length: of the measured inputs.
        engine: eager or compile.
        attention: implementation, such as eager or sdpa; None: transformers' choice.
        clock: wall, or cpu on shared machines.
        regime: throughput (one forward pass of a batch), latency (batches of one, several lengths) or
            generate (a prompt and new tokens with a cache).
        prompt_length: lengths of the inputs, for latency and generate.
        new_tokens: how many to generate.
        latency_table: a file measured elsewhere; nothing is measured here then.
        method: default, or ziplm for the paper's own configuration.
        calibration_samples: behind the Hessians; None: 2048, or 512 for language models.
        search_samples: for the search, and as many again to judge its result.
        gradients: whether to find the loss metric; without it the stream prior has to do.
        selection: how columns are chosen: obs, scores-once, activation or magnitude.
        update: whether the columns left are corrected for those that go.
        centred: whether biases take over the mean of what is removed.
        prior: one of the priors, or auto to try all but own, the paper's.
        search: direct, evolution, ziplm, prior (one solve, no search) or uniform.
        evaluations: of candidates, by the search.
        loss: kl to the dense model, or the task's own.
        refit: whether to fit what is left to the dense model's stream.
        measure_seconds: longest time of one measurement of a model.
        profile_seconds: longest time of the latency table.
        calibration_batch_size: samples at a time while calibrating and evaluating.
        memory_gb: how much memory Hessians may take at once; more passes are made if it is less than needed.
        seed: of everything that is random.
        mode: oneshot, or gradual: each target starts from the one before, and is fine-tuned.
        preset: hyper-parameters of a run of the paper, where nothing else is said; see `ziplm presets`.
        dense_epochs: of fine-tuning the dense model first; it becomes the teacher.
        dense_steps: the same in optimizer steps; 0 for none, -1 to go by epochs.
        epochs_per_step: of fine-tuning after each target.
        steps_per_target: the same in optimizer steps; -1 to go by epochs.
        learning_rate: from which it decays in each step.
        train_batch_size: of fine-tuning.
        gradient_accumulation: forward passes to an optimizer step.
        weight_decay: of fine-tuning.
        dropout: whether fine-tuning has any.
        precision: of fine-tuning on a GPU.
        task_weight: λ1, of the task's own loss.
        logit_weight: λ2, of the distillation of outputs.
        token_weight: λ3, of the distillation of hidden states, token by token.
        temperature: of the distillation of outputs.
        report_to: trackers by the names of transformers.
    """

    _said: ClassVar[set[str]]  # of each config, by __new__
    model: str
    task: str
    output: str
    task_option: tuple[str, ...] = ()
    speedup: tuple[float, ...] = ()
    latency_ms: tuple[float, ...] = ()
    recover: tuple[float, ...] = ()
    params: tuple[float, ...] = ()
    flops: tuple[float, ...] = ()
    bytes: tuple[float, ...] = ()
    sparsity: tuple[float, ...] = ()
    round_to: int = 1
    uniform: bool = False
    train_file: str | None = None
    validation_file: str | None = None
    eval_file: str | None = None
    text_column: tuple[str, ...] = ()
    label_column: str | None = None
    max_length: int | None = None
    device: str = "cpu"
    threads: int | None = None
    dtype: str = "float32"
    batch_size: int | None = None
    sequence_length: int = 128
    engine: Literal["eager", "compile"] = "eager"
    attention: str | None = None
    clock: Literal["wall", "cpu"] = "wall"
    regime: Literal["throughput", "latency", "generate"] = "throughput"
    prompt_length: tuple[int, ...] = ()
    new_tokens: int = 64
    latency_table: str | None = None
    method: Literal["default", "ziplm"] = "default"
    calibration_samples: int | None = None
    search_samples: int = 256
    gradients: bool = True
    selection: str = "obs"
    update: bool = True
    centred: bool = True
    prior: str = "auto"
    search: str = "direct"
    evaluations: int = 100
    loss: Literal["kl", "task"] = "kl"
    refit: bool = True
    measure_seconds: float = 30.0
    profile_seconds: float = 120.0
    calibration_batch_size: int = 32
    memory_gb: float = 2.0
    seed: int = 0
    mode: Literal["oneshot", "gradual"] = "oneshot"
    preset: str | None = None
    dense_epochs: float = 0.0
    dense_steps: int = -1
    epochs_per_step: float = 8.0
    steps_per_target: int = -1
    learning_rate: float = 8e-5
    train_batch_size: int = 32
    gradient_accumulation: int = 1
    weight_decay: float = 0.03
    dropout: bool = True
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    task_weight: float = 0.0
    logit_weight: float = 1.0
    token_weight: float = 0.5
    temperature: float = 1.0
    report_to: tuple[str, ...] = ()

    def __new__(cls, *values: Any, **named: Any) -> "Config":
        """Remember what was said: also a default, if it was said, stands against a preset."""
        made = super().__new__(cls)
        said = {field.name for field in fields(cls)[: len(values)]} | set(named)
        object.__setattr__(made, "_said", said)
        return made

    def __post_init__(self) -> None:
        for field in fields(self):
            value = as_kind(field.name, getattr(self, field.name), field.type)
            object.__setattr__(self, field.name, value)
        if self.method == "ziplm":
            self._fill(PAPER)
        if self.preset is not None:
            filling = find_preset(self.preset).as_options()
            if not self._said.isdisjoint(TARGETS):
                filling = {name: value for name, value in filling.items() if name not in TARGETS}
            if not self._said.isdisjoint(DENSE):  # epochs and steps stand for each other
                filling = {name: value for name, value in filling.items() if name not in DENSE}
            self._fill(filling)
        for value in self.speedup:
            require(value > 1, f"a speedup of {value:g}", "ask for more than 1")
        for value in self.latency_ms:
            require(value > 0, f"a latency of {value:g} ms", "ask for more than 0")
        for value in self.recover:
            require(0 < value <= 1, f"recover is {value:g}", "give a share of the metric, such as 0.99")
        for value in self.sparsity:
            require(0 < value < 1, f"a sparsity of {value:g}", "give a share between 0 and 1")
        for name in ("params", "flops", "bytes"):
            for value in getattr(self, name):
                require(value > 0, f"{name} is {value:g}", "ask for more than 0")
        require(0 <= self.seed < 2**30, f"seed is {self.seed}", "use a whole number from 0 to 1073741823")
        require(self.evaluations >= 0, f"evaluations is {self.evaluations}", "use 0 or more")
        require(self.dtype in DTYPES, f"dtype is {self.dtype!r}", f"use one of {', '.join(DTYPES)}")
        require(len(self.text_column) <= 2, f"{len(self.text_column)} text columns", "give one or two")
        for name in COUNTS:
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} is {value}", "use a whole number from 1 up")
        for name, least in (("steps_per_target", 1), ("dense_steps", 0)):
            value = getattr(self, name)
            require(value >= least or value == -1, f"{name} is {value}", f"use {least} or more, or -1")
        for name in ("memory_gb", "measure_seconds", "profile_seconds"):
            value = getattr(self, name)
            require(value > 0, f"{name} is {value:g}", "use more than 0")
        for name in WEIGHTS:
            value = getattr(self, name)
            require(value >= 0, f"{name} is {value:g}", "use 0 or more")
        require(
            self.mode == "oneshot" or any(getattr(self, name) for name in WEIGHTS),
            "all weights of the loss are 0",
            "give one; without a teacher, --task-weight 1",
        )
        for name, known in (("prior", PRIORS), ("selection", SELECTIONS), ("search", SEARCHES)):
            value = getattr(self, name)
            require(value in known, f"{name} is {value!r}", f"use one of {', '.join(known)}")
        require(
            self.gradients or self.prior not in ("factored", "scalar", "exact"),
            f"prior {self.prior} needs gradients",
            "leave out --no-gradients, or use another prior",
        )

    def _fill(self, options: Mapping[str, Any]) -> None:
        """Set what nothing was said of."""
        for name, value in options.items():
            if name not in self._said:
                object.__setattr__(self, name, value)

    @property
    def setting(self) -> Setting:
        """Where and on what models are measured."""
        return Setting(
            self.batch_size or 0,
            self.sequence_length,
            self.threads,
            self.device,
            DTYPES[self.dtype],
            self.engine,
            self.clock,
            self.regime,
            self.prompt_length,
            self.new_tokens,
        )

    @property
    def trains_dense(self) -> bool:
        """Whether the dense model is fine-tuned first."""
        by_epochs = self.dense_steps < 0 and self.dense_epochs > 0
        return self.mode == "gradual" and (self.dense_steps > 0 or by_epochs)

    @property
    def task_settings(self) -> dict[str, Any]:
        """What the task is made with."""
        return parsed_settings(self.task_option)

    @property
    def source(self) -> Source:
        """Where examples come from."""
        return Source(
            self.train_file, self.validation_file, self.eval_file, self.text_column, self.label_column
        )

    def differences(self, other: "Config") -> list[str]:
        """Options that two runs in one folder must share, and do not. What changes no result may differ."""
        free = (*TARGETS, "output", "memory_gb")
        names = [f.name for f in fields(self) if f.name not in free]
        return [
            f"{name} is {getattr(self, name)!r}, was {getattr(other, name)!r}"
            for name in names
            if getattr(self, name) != getattr(other, name)
        ]

    def save(self, path: Path) -> None:
        """Write as TOML; options that are None are left out."""
        values = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        lines = [f"{name} = {_toml(value)}" for name, value in values.items()]
        with written_whole(path) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Config":
        """Read a TOML file with all that is needed."""
        return cls.of(read_options(path))

    @classmethod
    def of(cls, options: dict[str, Any]) -> "Config":
        """From options by name; UsageError if one is missing."""
        missing = [name for name in ("model", "task", "output") if not options.get(name)]
        if missing:
            raise UsageError(f"{missing[0]} is missing", "give it on the command line or in the config file")
        return cls(**options)


def read_options(path: Path) -> dict[str, Any]:
    """Options of a TOML file, checked by name."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise UsageError(f"{path} is not TOML: {one_line(error)}", "correct it") from error
    known = {f.name for f in fields(Config)}
    values = {name.replace("-", "_"): value for name, value in values.items()}
    if unknown := [name for name in values if name not in known]:
        raise UsageError(f"{path} has an unknown option {unknown[0]!r}", "see ziplm compress --help")
    return values


def merged(file: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a file, with others on the command line before them.

    The file of a run holds all options. Where another method or preset is asked for, those that either of
    them stands for are left out, or the new name would change nothing.
    """
    stale: set[str] = set()
    if said.get("method", file.get("method")) != file.get("method"):
        stale |= set(PAPER)
    if said.get("preset", file.get("preset")) != file.get("preset"):
        for name in (said["preset"], file.get("preset")):
            stale |= set(find_preset(name).as_options()) if name else set()
    return {**{name: value for name, value in file.items() if name not in stale}, **said}


def _toml(value: Any) -> str:
    """TOML's way to write a value: JSON's, but for characters beyond the first plane, and for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
