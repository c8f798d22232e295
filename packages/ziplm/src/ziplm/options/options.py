"""All options of a run: typed, validated, and aware of which of them were given."""

import difflib
import warnings
from collections.abc import Mapping
from typing import Any, Self

from pydantic import ValidationError, model_validator

from ziplm.errors import UsageError
from ziplm.options.presets import find_preset
from ziplm.options.rules import check_options
from ziplm.options.sections import (
    DataOptions,
    EnvironmentOptions,
    EssentialOptions,
    MethodOptions,
    RunOptions,
    TargetOptions,
)
from ziplm.options.setting import Setting
from ziplm.options.source import Source
from ziplm.options.targets import Kind, Target, make_targets
from ziplm.options.training_section import FinetuneOptions
from ziplm.options.values import parsed_settings

SPEEDS: dict[str, Kind] = {"speedup": "speedup", "latency_ms": "latency", "recover": "recover"}
"""Options that ask for a speed, and the kind of target that each makes."""
LIMITS = ("params", "flops", "bytes", "sparsity")
TARGETS = (*SPEEDS, *LIMITS)
DENSE_TRAINING = ("dense_epochs", "dense_steps")
DATA_LENGTH = 128  # tokens to which examples are cut, if no length is given
PAPER = {
    "gradients": False,
    "head_width": False,
    "centred": False,
    "prior": "own",
    "search": "ziplm",
    "evaluations": 1000,
    "refit": False,
}
"""The configuration of the ZipLM paper, which `method="ziplm"` uses for all options that are not given."""


class Options(
    RunOptions,
    FinetuneOptions,
    MethodOptions,
    EnvironmentOptions,
    DataOptions,
    TargetOptions,
    EssentialOptions,
):
    """All options of `ziplm.compress`. Required: model, task, output and at least one target.

    The fields, their defaults and their help texts are in `ziplm.options.sections`. `model_fields_set` holds
    the names of the options that were given; even a default value, if given, overrides a preset.

    Raises:
        UsageError: if an option is unknown, has the wrong type, is out of range, or contradicts another one.
    """

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _usage_error(error) from None

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Accept a name of version 0.1."""
        if "sequence_length" not in values:
            return values
        warnings.warn("sequence_length is deprecated; use input_length", DeprecationWarning, stacklevel=4)
        rest = {name: value for name, value in values.items() if name != "sequence_length"}
        return {"input_length": values["sequence_length"], **rest}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Fill in what the method and the preset stand for, and check all values."""
        if self.method == "ziplm":
            self._fill(PAPER)
        if self.preset is not None:
            self._fill(self._preset_options(self.preset))
        if not self.can_narrow_heads:
            self._fill({"head_width": False})
        check_options(self)
        assert self.setting  # raises UsageError if engine, regime and data type do not go together
        return self

    def _preset_options(self, name: str) -> dict[str, Any]:
        """Return a preset's options; if targets or a dense training are given, the preset's are left out."""
        filling = find_preset(name).as_options()
        for alternatives in (TARGETS, DENSE_TRAINING):
            if not self.model_fields_set.isdisjoint(alternatives):
                filling = {name: value for name, value in filling.items() if name not in alternatives}
        return filling

    def _fill(self, options: Mapping[str, Any]) -> None:
        """Set the options that were not given; they still do not count as given."""
        for name, value in options.items():
            if name not in self.model_fields_set:
                object.__setattr__(self, name, value)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Options":
        """Make options from values by name; raise UsageError if model, task or output is missing."""
        missing = [name for name in ("model", "task", "output") if not options.get(name)]
        if missing:
            raise UsageError(
                f"{missing[0]} is missing", "give it on the command line, in the call or in the config file"
            )
        return cls(**options)

    def targets(self) -> list[Target]:
        """Return all targets, as `make_targets`; raise UsageError if there is none, or if they conflict."""
        speeds = {kind: getattr(self, name) for name, kind in SPEEDS.items()}
        return make_targets(speeds, {name: getattr(self, name) for name in LIMITS})

    @property
    def setting(self) -> Setting:
        """The setting in which models are measured, before it is adapted to the model and the data."""
        return Setting(
            batch_size=self.batch_size or 0,
            lengths=self.prompt_length if self.regime == "generate" else self.input_length,
            threads=self.threads,
            device=self.device,
            dtype=self.dtype,
            engine=self.engine,
            quantize=self.quantize,
            clock=self.clock,
            regime=self.regime,
            new_tokens=self.new_tokens,
        )

    @property
    def data_length(self) -> int:
        """Number of tokens to which examples are cut, if the model takes as many."""
        if self.max_length:
            return self.max_length
        if self.regime == "throughput" and self.input_length:
            return self.input_length[0]
        # Measuring short inputs is no reason to cut the longer ones that the model is evaluated on.
        return max(DATA_LENGTH, *self.input_length, 1)

    @property
    def trains(self) -> bool:
        """Whether members are fine-tuned."""
        return self.mode != "oneshot"

    @property
    def can_narrow_heads(self) -> bool:
        """Whether the other options let heads become narrower, which the paper's method never does."""
        return self.method != "ziplm" and self.gradients and self.update and self.selection == "obs"

    @property
    def trains_dense(self) -> bool:
        """Whether the dense model is fine-tuned first."""
        by_epochs = self.dense_steps < 0 and self.dense_epochs > 0
        return self.trains and (self.dense_steps > 0 or by_epochs)

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
        """Describe the options that differ, although all commands in one run folder must share them."""
        free = (*TARGETS, "output", "memory_gb", "alternatives")  # these change no result of another target
        names = [name for name in type(self).model_fields if name not in free]
        return [
            f"{name} is {getattr(self, name)!r}, was {getattr(other, name)!r}"
            for name in names
            if getattr(self, name) != getattr(other, name)
        ]


_EXPECTED = {
    "int_type": "give a whole number",
    "float_type": "give a number",
    "finite_number": "give a number",
    "bool_type": "give true or false",
    "string_type": "give text",
}


def _usage_error(error: ValidationError) -> UsageError:
    """Turn the first error of pydantic into one line of ours."""
    first = error.errors()[0]
    if first["type"] == "value_error" and isinstance(ours := first["ctx"]["error"], UsageError):
        return ours
    name, value = str(first["loc"][0]), first["input"]
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, Options.model_fields, n=1)
        return UsageError(
            f"there is no option {name!r}",
            f"did you mean {near[0]}?" if near else "see ziplm compress --help",
        )
    if first["type"] == "literal_error":
        allowed = first["ctx"]["expected"].replace(" or ", ", ").replace("'", "")
        return UsageError(f"{name} is {value!r}", f"use one of {allowed}")
    return UsageError(f"{name} is {value!r}", _EXPECTED.get(first["type"], first["msg"]))
