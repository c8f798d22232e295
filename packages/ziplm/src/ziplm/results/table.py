"""The table of a family."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from ziplm.results.family import Family, Member, family_text
from ziplm.results.sizes import sizes_text
from ziplm.results.texts import competition_text, four_digits, inputs_text


class Signs(NamedTuple):
    """Signs of the table."""

    within: str
    """Sign before the distance to the farther end of an interval."""
    alike: str
    """Mark of a metric that cannot be told apart from the dense model's."""
    becomes: str
    """Sign between the dense model's time and the compressed model's."""


SIGNS, ASCII_SIGNS = Signs("±", "≈", "→"), Signs("+-", "~", "->")


def print_family(family: Family, console: Console) -> None:
    """Print one row for each member; below, its sizes, its folder, and the total training and time."""
    table = Table(show_edge=False, pad_edge=False)  # fits 80 columns without its edge
    metric = family[0].metrics["metric"]["name"] if family else "metric"
    for heading in ("target", "speed", f"dense {metric}", "compressed", "layers' parameters", "disk"):
        longest_word = max(map(len, heading.split()))
        table.add_column(
            heading,
            justify="right",
            no_wrap=heading in ("target", "speed"),
            min_width=min(longest_word, len("parameters")),
        )
    signs = ASCII_SIGNS if console.options.ascii_only else SIGNS
    for member in family:
        metrics = member.metrics
        left, dense = metrics["parameters"]["layers"], metrics["dense_parameters"]["layers"]
        table.add_row(
            member.target,
            speed_text(metrics, signs),
            *metric_texts(metrics["metric"], signs),
            f"{left / 1e6:.2f}M ({left / dense:.0%})",
            f"{metrics['bytes_on_disk'] / 1e6:.0f} MB",
        )
    console.print(table)
    if any(member.metrics["metric"].get("interval") for member in family):
        console.print(
            f"{signs.within}: 95 % interval; {signs.alike}: cannot be told apart from the dense model at 95 %"
        )
    if any(member.metrics["measured"] for member in family):
        console.print("speed: measured beside the dense model, with its 99 % interval")
    measurements = {member.target: member.metrics["measured"] or {} for member in family}
    if competition := competition_text(measurements):
        console.print(competition, markup=False, soft_wrap=True)
    for line in _time_lines(family, signs):
        console.print(line, markup=False, soft_wrap=True)
    for line in engine_lines(family):
        console.print(line, markup=False, soft_wrap=True)
    console.print(
        "heads (× their width)/FFN columns kept in each layer (– where a branch is removed), and folders:"
    )
    for member in family:
        line = f"  {member.target}: {sizes_text(member.sizes)}  {member.folder}"
        console.print(line, markup=False, soft_wrap=True)
    if family and (took := family_text(family[0].folder.parent)):
        console.print(took, markup=False, soft_wrap=True)


def engine_lines(family: Family) -> list[str]:
    """Say in which engine a family was measured, how fast it is over eager torch, and what int8 costs."""
    measured = [member for member in family if (member.metrics["measured"] or {}).get("over_eager")]
    if not measured:
        return []
    environment = measured[0].metrics["environment"]
    threads = environment["threads"]
    over_eager = ", ".join(f"{m.metrics['measured']['over_eager']:.2f}x for {m.target}" for m in measured)
    engine = f"engine {environment['engine']}, {threads} thread{'s' if threads > 1 else ''}"
    lines = [f"{engine}; speedup over the dense model in eager torch: {over_eager}"]
    quantized = [member for member in measured if member.metrics.get("quantization")]
    if not quantized:
        return lines
    before = ", ".join(f"{m.metrics['quantization']['metric_before']:.4g} for {m.target}" for m in quantized)
    alone = quantized[0].metrics["quantization"]["dense_speedup"]
    lines.append(f"metric before int8: {before}; int8 alone makes the dense model {alone:.2f}x as fast")
    unpruned = [m.target for m in quantized if m.sizes == _dense_sizes(m)]
    if unpruned:
        lines.append(f"{' and '.join(unpruned)}: int8 alone is enough, and nothing was pruned")
    if alone < 1:
        lines.append("int8 is slower than float32 here: this CPU may lack instructions for it, such as VNNI")
    return lines


def _dense_sizes(member: Member) -> dict[str, list[int | list[int]]]:
    dense: dict[str, int | list[int]] = member.metrics["dense_sizes"]
    return {part: [dense[part]] * len(sizes) for part, sizes in member.sizes.items()}


def metric_texts(metric: dict[str, Any], signs: Signs = SIGNS) -> tuple[str, str]:
    """Format the metric of the dense and of the compressed model, each with its interval if it has one.

    The compressed model's metric is marked if the interval of the difference contains 0.
    """
    dense = value_text(metric["dense"], metric.get("dense_interval"), signs)
    compressed = value_text(metric["compressed"], metric.get("interval"), signs)
    difference = metric.get("difference_interval")
    alike = difference is not None and difference[0] <= 0 <= difference[1]
    return dense, f"{compressed} {signs.alike}" if alike else compressed


def difference_text(metric: dict[str, Any]) -> str:
    """Format the metric of both models, and the interval of their difference if there is one."""
    text = f"{metric['name']} {four_digits(metric['compressed'])}, dense {four_digits(metric['dense'])}"
    difference = metric.get("difference_interval")
    if difference is None:
        return text
    low, high = (f"{end:+.4g}" for end in difference)
    return f"{text}, difference {metric['compressed'] - metric['dense']:+.4g} [{low}, {high}] at 95 %"


def value_text(value: float, interval: Sequence[float] | None, signs: Signs = SIGNS) -> str:
    """Format a value as ``0.8270 ±0.0061``, with the distance to the farther end of its interval."""
    if interval is None:
        return four_digits(value)
    distance = max(value - interval[0], interval[1] - value)
    whole_digits = len(str(int(abs(value))))
    if whole_digits > 4:
        return f"{value:.4g} {signs.within}{distance:.2g}"
    decimals = 4 if abs(value) < 1 else 4 - whole_digits
    return f"{value:.{decimals}f} {signs.within}{distance:.{decimals}f}"


def speed_text(metrics: dict[str, Any], signs: Signs = SIGNS) -> str:
    """Format the measured speedup with its interval, or the predicted one if nothing was measured.

    The milliseconds of both models are on a line of their own: the first line for a latency target, else the
    second.
    """
    measured = metrics["measured"]
    if measured is None:
        return f"~{metrics['predicted']['speedup']:.2f}x predicted"
    lines = [
        f"{measured['speedup']:.2f}x [{measured['low']:.2f}, {measured['high']:.2f}]",
        _milliseconds_text(measured, signs),
    ]
    return "\n".join(reversed(lines) if metrics["target"]["kind"] == "latency" else lines)


def _milliseconds_text(measured: dict[str, Any], signs: Signs) -> str:
    """Format the times of the dense and of the compressed model as ``148 → 12.3 ms``."""
    seconds = [measured.get("dense_seconds"), measured["seconds"]]
    times = [1e3 * each for each in seconds if each is not None]
    texts = [f"{time:.0f}" if time >= 100 else f"{time:.3g}" for time in times]
    return f" {signs.becomes} ".join(texts) + " ms"


def _time_lines(family: Family, signs: Signs) -> Iterator[str]:
    """Say what the milliseconds are of, once for each kind of inputs; reports of 0.1 do not tell it."""
    inputs = [
        _inputs_text(member.metrics.get("environment") or {})
        for member in family
        if (member.metrics["measured"] or {}).get("dense_seconds") is not None
    ]
    for text in dict.fromkeys(filter(None, inputs)):
        yield f"ms: time of one call, dense {signs.becomes} compressed; {text}"


def _inputs_text(environment: dict[str, Any]) -> str:
    """Describe the measured inputs; of several lengths, the mean counts, and for generation the median."""
    details = environment.get("details") or {}
    figures = {"input lengths": "their mean", "prompt lengths": "their median"}
    figure = next((figures[name] for name in figures if len(str(details.get(name, "")).split()) > 1), "")
    return ", ".join(filter(None, [inputs_text(environment), figure]))
