"""The allowed range of each option, and which options go together."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from ziplm.errors import UsageError
from ziplm.options.values import require

LOSS_WEIGHTS = ("task_weight", "logit_weight", "token_weight")
COUNTS = (
    "calibration_samples",
    "search_samples",
    "batch_size",
    "input_length",
    "prompt_length",
    "threads",
    "max_length",
    "round_to",
    "new_tokens",
    "calibration_batch_size",
    "train_batch_size",
    "gradient_accumulation",
)
MOST_THREADS = 1024  # more than that makes OpenMP fail, or kill the process
MOST_AT_ONCE = 2**16  # examples in a batch, and groups in a step; more do not fit into any memory
MOST_TOKENS = 2**20  # in an input
MOST_OF_ALL = 10**9  # of anything that is counted


@dataclass(frozen=True)
class Rule:
    """The range of some options.

    Attributes:
        options: names of the options. Each value of a repeatable option is checked; None always passes.
        holds: whether a value is allowed.
        message: what is wrong, formatted with the name and the value.
        hint: what to do.
    """

    options: tuple[str, ...]
    holds: Callable[[Any], bool]
    message: str
    hint: str

    def check(self, options: Any) -> None:
        """Raise UsageError if a value is not allowed."""
        for name in self.options:
            value = getattr(options, name)
            for each in value if isinstance(value, tuple) else (value,):
                if each is not None and not self.holds(each):
                    raise UsageError(self.message.format(name=name, value=each), self.hint)


def _is_positive(value: Any) -> bool:
    return bool(value > 0)


def _is_at_most(most: float, value: float) -> bool:
    return value <= most


RULES = (
    Rule(("speedup",), lambda value: value > 1, "a speedup of {value:g}", "ask for more than 1"),
    Rule(("latency_ms",), _is_positive, "a latency of {value:g} ms", "ask for more than 0"),
    Rule(
        ("recover",),
        lambda value: 0 < value <= 1,
        "recover is {value:g}",
        "give a share of the metric, such as 0.99",
    ),
    Rule(
        ("sparsity",), lambda value: 0 < value < 1, "a sparsity of {value:g}", "give a share between 0 and 1"
    ),
    Rule(("params", "flops", "bytes"), _is_positive, "{name} is {value:g}", "ask for more than 0"),
    Rule(
        ("seed",),
        lambda value: 0 <= value < 2**30,
        "seed is {value}",
        "use a whole number from 0 to 1073741823",
    ),
    Rule(("evaluations",), lambda value: value >= 0, "evaluations is {value}", "use 0 or more"),
    Rule(COUNTS, lambda value: value >= 1, "{name} is {value}", "use a whole number from 1 up"),
    Rule(
        ("threads",),
        lambda value: value <= MOST_THREADS,
        "threads is {value}",
        f"use at most {MOST_THREADS}",
    ),
    Rule(
        ("steps_per_target",),
        lambda value: value >= 1 or value == -1,
        "{name} is {value}",
        "use 1 or more, or -1",
    ),
    Rule(
        ("dense_steps",), lambda value: value >= 0 or value == -1, "{name} is {value}", "use 0 or more, or -1"
    ),
    Rule(
        ("memory_gb", "measure_seconds", "profile_seconds", "train_minutes"),
        _is_positive,
        "{name} is {value:g}",
        "use more than 0",
    ),
    Rule((*LOSS_WEIGHTS, "dense_epochs"), lambda value: value >= 0, "{name} is {value:g}", "use 0 or more"),
    Rule(("warmup",), lambda value: 0 <= value < 1, "warmup is {value:g}", "give a share from 0 to below 1"),
    *(
        Rule(names, partial(_is_at_most, most), "{name} is {value}", f"use at most {most}")
        for names, most in (
            (("batch_size", "calibration_batch_size", "train_batch_size"), MOST_AT_ONCE),
            (("input_length", "prompt_length", "max_length", "new_tokens"), MOST_TOKENS),
            ((*COUNTS, "evaluations", "steps_per_target", "dense_steps"), MOST_OF_ALL),
            (("memory_gb", "dense_epochs", "epochs_per_step"), 10**6),
            (("measure_seconds", "profile_seconds", "train_minutes"), MOST_OF_ALL),
        )
    ),
)


def check_options(options: Any) -> None:
    """Raise UsageError if an option is out of range, or contradicts another one."""
    for name in type(options).model_fields:
        value = getattr(options, name)
        for text in value if isinstance(value, tuple) else (value,):
            require(not isinstance(text, str) or _is_text(text), f"{name} is {text!r}", "give text in UTF-8")
    for rule in RULES:
        rule.check(options)
    check_lengths(options.regime, options.model_fields_set)
    _ = options.setting  # raises UsageError if lengths, regime and engine do not go together
    require(len(options.text_column) <= 2, f"{len(options.text_column)} text columns", "give one or two")
    require(
        not options.trains or any(getattr(options, name) for name in LOSS_WEIGHTS),
        "all weights of the loss are 0",
        "give one; without a teacher, --task-weight 1",
    )
    require(
        options.gradients or options.prior not in ("factored", "scalar", "exact"),
        f"prior {options.prior} needs gradients",
        "leave out --no-gradients, or use another prior",
    )
    require(
        options.can_narrow_heads or not options.head_width,
        "narrower heads need gradients, the selection obs, updated weights, and another method than ziplm",
        "use --no-head-width, or leave out the options that exclude narrower heads",
    )
    require(
        not options.alternatives or options.latency_table is None,
        "alternatives are measured here, but nothing is with a latency table from elsewhere",
        "leave out --alternatives, or --latency-table",
    )


def _is_text(text: str) -> bool:
    """Return whether a text has no zero byte, which no path can have, and can be written to a file."""
    try:
        text.encode()
    except UnicodeEncodeError:  # an argument that is not UTF-8, or half of a surrogate pair in a file
        return False
    return "\0" not in text


UNUSED = {
    "throughput": ("prompt_length", "new_tokens"),
    "latency": ("prompt_length", "new_tokens"),
    "generate": ("input_length",),
}
"""Options that a regime does not use."""
_INSTEAD = {
    "input_length": "give --prompt-length and --new-tokens",
    "prompt_length": "give --input-length, or use --regime generate",
    "new_tokens": "leave it out, or use --regime generate",
}


def check_lengths(regime: str, given: Collection[str]) -> None:
    """Raise UsageError if a length is given that the regime does not use."""
    for name in UNUSED[regime]:
        flag = f"--{name.replace('_', '-')}"
        require(name not in given, f"{flag} is not used with --regime {regime}", _INSTEAD[name])
