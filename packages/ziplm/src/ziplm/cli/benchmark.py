"""``ziplm benchmark``: the measured speedup of one checkpoint or exported file over another."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import rich_click as click
from rich.text import Text

from ziplm.cli.options import ENVIRONMENT, given, options, setting_of

EXAMPLES = Text(
    r"""Examples:
  ziplm benchmark models/dense runs/sst2/2x --batch-size 8 --input-length 128
  ziplm benchmark models/dense runs/sst2/2x --regime latency --input-length 32
  ziplm benchmark dense/onnx/model.onnx runs/sst2/2x/onnx/model.onnx \
      --threads 1"""
)


WIDEST = 10_000  # columns of a table that is not broken


@click.command(epilog=EXAMPLES)
@click.argument("dense")
@click.argument("others", nargs=-1, required=True)
@options(ENVIRONMENT)
@click.option("--precision", default=0.01, show_default=True, help="Relative error at which to stop.")
@click.option("--max-seconds", default=60.0, show_default=True, help="Time limit of the measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def benchmark(
    context: click.Context,
    /,
    dense: str,
    others: tuple[str, ...],
    precision: float,
    max_seconds: float,
    as_json: bool,
    **_: Any,
) -> None:
    """Measure how much faster OTHERS are than DENSE, in interleaved rounds.

    Each model is a checkpoint folder or a name on the hub, and may be any model that takes tokens, or an
    exported file (.onnx or .xml), which runs in its own engine. Checkpoints run in --engine, for which they
    are exported if necessary; with --quantize int8, all but the first are quantised. All use the same number
    of threads. By default, a forward pass of the whole model on full-length random tokens is timed. With
    --regime latency, it is the mean over inputs of several lengths. With --regime generate, it is the median,
    over prompts of several lengths, of generating new tokens with a cache and top-k sampling.
    """
    from rich.console import Console

    from ziplm.architectures.exported import ExportedModel, open_model
    from ziplm.results.texts import competition_text
    from ziplm.runs.progress import Bars
    from ziplm.stages.engine import run_in_engine
    from ziplm.stages.measure import compare_models
    from ziplm.stages.workload import environment_of, setting_for

    setting, attention = setting_of(given(context))
    environment_of(setting, attention)  # fails before anything is loaded
    loading = {"attn_implementation": attention} if attention else {}
    paths = [dense, *others]
    names = paths if len(set(paths)) == len(paths) else [f"{path} ({n})" for n, path in enumerate(paths)]
    models = {
        name: open_model(path, threads=setting.threads, **loading)
        for name, path in zip(names, paths, strict=True)
    }
    folder = Path(context.with_resource(TemporaryDirectory()))
    for number, (name, model) in enumerate(models.items()):
        if not isinstance(model, ExportedModel):
            quantize = setting.quantize if number else None  # the dense model is what the others refer to
            models[name] = run_in_engine(model, setting, folder / str(number), quantize=quantize)
    engines = {name: _engine(model, setting) for name, model in models.items()}
    setting = setting_for(setting, list(models.values()))
    with Bars().stage("measure") as advance:
        result = compare_models(
            models,
            setting,
            rel_error=precision,
            max_seconds=max_seconds,
            progress=lambda rounds, used: advance(used, 1.0),
        )
    used = ", ".join(dict.fromkeys(engines.values()))
    environment = replace(environment_of(setting, attention), engine=used)
    made = setting.batch_size * setting.new_tokens if setting.regime == "generate" else 0
    rows = [
        {
            **_row(name, result, models[name], made),
            "engine": engines[name],
            "bytes": _bytes(path, models[name]),
        }
        for name, path in zip(names, paths, strict=True)
    ]
    if as_json:
        click.echo(json.dumps({"models": rows, "environment": environment.to_dict()}, indent=1))
        return
    console = Console(highlight=False)
    _print_table(rows, console)
    reasons = {
        "rel_error": f"until the speedups were known within {precision:.2g} of their value",
        "max_seconds": f"until the time limit of {max_seconds:g} s; --max-seconds sets another",
    }
    console.print("speedup: with its 99 % interval")
    if competition := competition_text({row["model"]: row for row in rows}):
        console.print(competition, markup=False, soft_wrap=True)
    console.print(f"{len(result.samples)} rounds, {reasons[result.stopped]}", markup=False, soft_wrap=True)
    console.print(str(environment), markup=False, soft_wrap=True)


def _row(name: str, result: Any, model: Any, made: int) -> dict[str, Any]:
    """Collect the figures of one model; `made` is the number of tokens that a generation makes."""
    ratio, seconds = result.speedup(name), result[name].seconds
    return {
        "model": name,
        "ms": seconds * 1e3,
        **({"tokens_per_second": made / seconds} if made else {}),
        "speedup": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "competition": result.competition,
        "doubt": ratio.doubt,
        "parameters": sum(parameter.numel() for parameter in model.parameters()) or None,
    }


def _print_table(rows: list[dict[str, Any]], console: Any) -> None:
    """Print the table with whole names: paths that do not fit are shortened, and listed below it."""
    names = [row["model"] for row in rows]
    numbers = [str(number) for number in range(1, len(names) + 1)]
    for labels in (names, _unique_ends(names), numbers):
        table = _table(rows, labels)
        if console.measure(table, options=console.options.update(width=WIDEST)).maximum <= console.width:
            break
    console.print(table)
    for label, name in zip(labels, names, strict=True):
        if label != name:
            console.print(f"  {label}: {name}", markup=False, soft_wrap=True)


def _unique_ends(names: list[str]) -> list[str]:
    """Shorten paths to as few of their last parts as tell them apart."""
    parts = [Path(name).parts for name in names]
    for kept in range(1, max(map(len, parts)) + 1):
        ends = [str(Path(*each[-kept:])) for each in parts]
        if len(set(ends)) == len(ends):
            break
    return ends


def _table(rows: list[dict[str, Any]], labels: list[str]) -> Any:
    from rich.table import Table

    generates = "tokens_per_second" in rows[0]
    table = Table(show_edge=False, pad_edge=False)  # fits 80 columns without its edge
    table.add_column("model", no_wrap=True)
    table.add_column("engine", no_wrap=True)
    for heading in ("ms", *(["tokens/s"] if generates else []), "speedup", "parameters", "MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, row in zip(labels, rows, strict=True):
        table.add_row(
            label,
            row["engine"],
            _digits(row["ms"]),
            *([_digits(row["tokens_per_second"])] if generates else []),
            f"{row['speedup']:.2f}x [{row['low']:.2f}, {row['high']:.2f}]",
            "" if row["parameters"] is None else f"{row['parameters'] / 1e6:.2f}M",
            "" if row["bytes"] is None else _digits(row["bytes"] / 1e6, 3),
        )
    return table


def _digits(value: float, digits: int = 4) -> str:
    """Format a number with that many digits, and more only in front of the point."""
    return f"{value:.0f}" if value >= 10**digits else f"{value:.{digits}g}"


def _engine(model: Any, setting: Any) -> str:
    """Return the engine that runs a model; exported files only run on the CPU, with weights as they are."""
    from ziplm.architectures.exported import ExportedModel
    from ziplm.errors import UsageError

    if not isinstance(model, ExportedModel):
        return str(setting.engine)
    if (setting.device, setting.dtype) != ("cpu", "float32"):
        raise UsageError(f"{model.file} is an exported file", "use --device cpu and --dtype float32")
    return model.engine


def _bytes(path: str, model: Any) -> int | None:
    """Return the size of the weights on disk; None for a model of the hub."""
    from ziplm.architectures.exported import ExportedModel, files_of
    from ziplm.architectures.inspection import size_on_disk

    if isinstance(model, ExportedModel):
        return sum(file.stat().st_size for file in files_of(model.file))
    return size_on_disk(Path(path)) if Path(path).is_dir() else None
