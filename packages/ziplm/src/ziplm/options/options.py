"""All options of a run with their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from ziplm.errors import UsageError
from ziplm.options.presets import find_preset
from ziplm.options.rules import check_options
from ziplm.options.setting import Setting
from ziplm.options.source import Source
from ziplm.options.targets import Kind, Target, make_targets
from ziplm.options.values import as_kind, parsed_settings

SPEEDS: dict[str, Kind] = {"speedup": "speedup", "latency_ms": "latency", "recover": "recover"}
"""Options that ask for a speed, and the kind of target that each makes."""
LIMITS = ("params", "flops", "bytes", "sparsity")
TARGETS = (*SPEEDS, *LIMITS)
DENSE_TRAINING = ("dense_epochs", "dense_steps")
PAPER = {
    "gradients": False,
    "centred": False,
    "prior": "own",
    "search": "ziplm",
    "evaluations": 1000,
    "refit": False,
}
"""The configuration of the ZipLM paper, which `method="ziplm"` uses for all options not given explicitly."""


@dataclass(frozen=True)
class Options:
    """All options of `ziplm.compress`. Required: model, task, output and at least one target.

    Attributes:
        model: folder of a checkpoint, or name of a model on the hub.
        task: name of a task, one of `ziplm.tasks.TASKS`.
        output: run folder.
        task_option: settings of the task, such as "pooling=cls" or "stride=64".
        speedup: target speedups over the dense model.
        latency_ms: target times of a forward pass in milliseconds.
        recover: shares of the dense model's metric to keep, such as 0.99; each target is the fastest model
            that keeps it.
        params: upper limits of the layers' parameters. A limit applies to every speed target; without a
            speed target, each limit is a target itself. This holds for the next three as well.
        flops: upper limits of the layers' floating point operations in a forward pass.
        bytes: upper limits of the size of the layers' weights, in the measured data type.
        sparsity: shares of the layers' parameters to remove.
        round_to: FFN widths are multiples of this number; heads are not affected.
        uniform: whether all layers get the same size, for engines that require it.
        train_file: examples to calibrate and fine-tune on, instead of the task's own dataset.
        validation_file: examples to evaluate on.
        eval_file: other examples to evaluate on instead.
        text_column: names of one or two text columns.
        label_column: name of the column with labels.
        max_length: maximum length of an example in tokens; None for the sequence length.
        device: device such as "cpu" or "cuda:0".
        threads: threads of torch while measuring; None keeps torch's own number.
        dtype: data type of the measured models: float32, float16 or bfloat16.
        batch_size: batch size while measuring; None for 8, or 1 for latency and generate.
        sequence_length: length of the measured inputs in tokens, for throughput.
        engine: engine that runs the measured models: eager or compile.
        attention: attention implementation, such as eager or sdpa; None for the default of transformers.
        clock: wall, or cpu on machines with other load.
        regime: throughput (one forward pass of a batch), latency (single inputs of several lengths) or
            generate (a prompt and new tokens, with a cache).
        prompt_length: lengths of the inputs, for latency and generate.
        new_tokens: number of tokens to generate.
        latency_table: file of a latency table measured elsewhere; then nothing is measured here.
        method: default, or ziplm for the configuration of the paper.
        calibration_samples: samples behind the Hessians; None for 2048, or 512 for language models.
        search_samples: samples for the search, and as many again to judge its result.
        gradients: whether to compute the fisher; without it, only the stream and own priors exist.
        selection: how groups are chosen: obs, scores-once, activation or magnitude.
        update: whether the weights that stay are corrected for those that are removed.
        centred: whether biases take over the mean output of what is removed.
        prior: a single prior, or auto to try all of them except own, the paper's.
        search: direct, evolution, ziplm, prior (one solve without a search) or uniform.
        evaluations: number of candidates that the search evaluates.
        loss: kl for the divergence from the current model, or task for the task's own loss.
        refit: whether to fit the remaining weights to the current model's residual stream.
        measure_seconds: time limit of one measurement of a model.
        profile_seconds: time limit of the latency table.
        calibration_batch_size: batch size while calibrating and evaluating.
        memory_gb: memory for Hessians; if they need more, calibration makes several passes.
        seed: seed of everything that is random.
        mode: oneshot, or gradual, where each target starts from the one before and is fine-tuned.
        preset: name of hyper-parameters from the paper, used for all options not given explicitly; see
            `ziplm presets`.
        dense_epochs: epochs of fine-tuning the dense model first; it then becomes the teacher.
        dense_steps: the same in optimizer steps; 0 for none, -1 to use dense_epochs.
        epochs_per_step: epochs of fine-tuning after each target.
        steps_per_target: the same in optimizer steps; -1 to use epochs_per_step.
        learning_rate: initial learning rate of each fine-tuning, from which it decays.
        train_batch_size: batch size of fine-tuning.
        gradient_accumulation: forward passes per optimizer step.
        weight_decay: weight decay of fine-tuning.
        dropout: whether fine-tuning uses the model's dropout.
        precision: numeric precision of fine-tuning on a GPU.
        task_weight: λ1, weight of the task's own loss.
        logit_weight: λ2, weight of the distillation of outputs.
        token_weight: λ3, weight of the token-wise distillation of hidden states.
        temperature: temperature of the distillation of outputs.
        report_to: experiment trackers, by their names in transformers.
    """

    _said: ClassVar[set[str]]  # names of the options given explicitly; set on each instance by __new__
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

    def __new__(cls, *values: Any, **named: Any) -> "Options":
        """Remember which options are given: even a default value, if given, overrides a preset."""
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
            self._fill(self._preset_options(self.preset))
        check_options(self)

    def _preset_options(self, name: str) -> dict[str, Any]:
        """Options of a preset, without alternatives to those that are given."""
        filling = find_preset(name).as_options()
        for alternatives in (TARGETS, DENSE_TRAINING):
            if not self._said.isdisjoint(alternatives):
                filling = {name: value for name, value in filling.items() if name not in alternatives}
        return filling

    def _fill(self, options: Mapping[str, Any]) -> None:
        """Set the options that were not given."""
        for name, value in options.items():
            if name not in self._said:
                object.__setattr__(self, name, value)

    @classmethod
    def of(cls, options: dict[str, Any]) -> "Options":
        """Make options from values by name; raise UsageError if a required one is missing."""
        missing = [name for name in ("model", "task", "output") if not options.get(name)]
        if missing:
            raise UsageError(f"{missing[0]} is missing", "give it on the command line or in the config file")
        return cls(**options)

    def targets(self) -> list[Target]:
        """Return all targets, the slowest first; raise UsageError if there is none, or if they conflict."""
        speeds = {kind: getattr(self, name) for name, kind in SPEEDS.items()}
        return make_targets(speeds, {name: getattr(self, name) for name in LIMITS})

    @property
    def setting(self) -> Setting:
        """The setting in which models are measured."""
        return Setting(
            self.batch_size or 0,
            self.sequence_length,
            self.threads,
            self.device,
            self.dtype,
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
        """The settings that the task is made with."""
        return parsed_settings(self.task_option)

    @property
    def source(self) -> Source:
        """The source of the examples."""
        return Source(
            self.train_file, self.validation_file, self.eval_file, self.text_column, self.label_column
        )

    def differences(self, other: "Options") -> list[str]:
        """Describe the options that two commands in one run folder must share, but do not."""
        free = (*TARGETS, "output", "memory_gb")  # these change no result of another target
        names = [field.name for field in fields(self) if field.name not in free]
        return [
            f"{name} is {getattr(self, name)!r}, was {getattr(other, name)!r}"
            for name in names
            if getattr(self, name) != getattr(other, name)
        ]
