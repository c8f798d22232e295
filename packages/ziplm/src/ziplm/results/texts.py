"""Numbers as text, for the tables of pages and model cards."""

from collections.abc import Mapping, Sequence
from typing import Any

from ziplm.results.plain import finite, mapping

NONE = "–"
SMALLEST_DOUBT = 0.005  # which is worth a sentence: what rounds to a whole per cent
# Details of an environment, where its regime has them.
LENGTHS = ("input lengths", "prompt lengths", "new tokens")


def number_text(value: Any, unit: str = "") -> str:
    """Format a number with four digits, and a speedup (unit "x") with two decimals; a dash for None."""
    if not finite([value]):
        return NONE
    return f"{value:.2f}x" if unit == "x" else f"{four_digits(value)}{unit}"


def four_digits(value: float) -> str:
    """Format a number with four digits, zeros at its end included: ``0.8000``, ``20.94``, ``1234``."""
    return f"{value:#.4g}".rstrip(".")


def interval_text(value: Any, low: Any, high: Any, unit: str = "") -> str:
    """Format a number with its interval, if it has one: ``2.03x [2.01, 2.05]``."""
    text = number_text(value, unit)
    if text == NONE or len(finite([low, high])) < 2:
        return text
    ends = (f"{end:.2f}" if unit == "x" else four_digits(end) for end in (low, high))
    return f"{text} [{', '.join(ends)}]"


def percent_text(share: float | None) -> str:
    """Format a share as a percentage with one decimal."""
    return NONE if share is None else f"{100 * share:.1f} %"


def bytes_text(count: float | None) -> str:
    """Format a size on disk in decimal units."""
    if not finite([count]):
        return NONE
    assert count is not None
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"


def count_text(count: float | None) -> str:
    """Format a number of parameters: ``85.1 M``."""
    if not finite([count]):
        return NONE
    assert count is not None
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f}"


def duration_text(seconds: float) -> str:
    """Format a duration in the largest unit that fits."""
    for unit, factor in (("h", 3600.0), ("min", 60.0)):
        if seconds >= factor:
            return f"{seconds / factor:.1f} {unit}"
    return f"{seconds:.1f} s"


def list_text(values: Sequence[Any]) -> str:
    """Join values as in a sentence: ``2, 3 and 5``."""
    texts = [str(value) for value in values]
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def competition_text(measurements: Mapping[str, dict[str, Any]]) -> str:
    """Say how far other processes may have changed measured speeds, given by name; "" if they did not."""
    doubtful = {
        name: measured
        for name, measured in measurements.items()
        if (measured.get("doubt") or 0) >= SMALLEST_DOUBT
    }
    if not doubtful:
        return ""
    share = max(measured["competition"] for measured in doubtful.values())
    doubt = max(measured["doubt"] for measured in doubtful.values())
    return (
        f"other processes used up to {share:.0%} of the cores: the speed of {list_text(list(doubtful))} "
        f"may be off by up to {doubt:.0%}, which is part of the interval"
    )


def environment_text(environment: dict[str, Any]) -> str:
    """Describe where latencies were measured: machine, engine, batch, lengths and threads."""
    threads = environment.get("threads")
    regime = mapping(environment.get("details")).get("regime")
    clock = environment.get("clock")
    parts = [
        environment.get("device_name") or environment.get("device"),
        environment.get("engine") and f"engine {environment['engine']}",
        environment.get("quantization") or environment.get("dtype"),
        threads and f"{threads} thread{'s' if threads != 1 else ''}",
        _batch_text(environment),
        regime and f"regime {regime}",
        _lengths_text(environment),
        clock and f"{'CPU' if clock == 'cpu' else clock} time",
    ]
    return ", ".join(str(part) for part in parts if part) or "unknown environment"


def inputs_text(environment: dict[str, Any]) -> str:
    """Describe the inputs that were measured: batch size and lengths."""
    return ", ".join(filter(None, [_batch_text(environment), _lengths_text(environment)]))


def _batch_text(environment: dict[str, Any]) -> str:
    batch, length = environment.get("batch_size"), environment.get("sequence_length")
    parts = [batch and f"batch size {batch}", length and f"{length} tokens"]
    return ", ".join(part for part in parts if part)


def _lengths_text(environment: dict[str, Any]) -> str:
    details = mapping(environment.get("details"))
    return ", ".join(
        f"{name} {', '.join(str(details[name]).split())}" for name in LENGTHS if details.get(name)
    )
