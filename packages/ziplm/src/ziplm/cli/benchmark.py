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
    console.print(_table(rows))
    reasons = {
        "rel_error": f"until the speedups were known within {precision:.2g} of their value",
        "max_seconds": f"until the time limit of {max_seconds:g} s; --max-seconds sets another",
    }
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
        "parameters": sum(parameter.numel() for parameter in model.parameters()) or None,
    }


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    generates = "tokens_per_second" in rows[0]
    table = Table()
    table.add_column("model", overflow="fold")  # the ends of paths are what differs
    table.add_column("engine")
    for heading in (
        "ms",
        *(["tokens/s"] if generates else []),
        "speedup",
        "99 % interval",
        "parameters",
        "MB",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["model"],
            row["engine"],
            f"{row['ms']:.2f}",
            *([f"{row['tokens_per_second']:.1f}"] if generates else []),
            f"{row['speedup']:.2f}x",
            f"{row['low']:.2f} – {row['high']:.2f}",
            "" if row["parameters"] is None else f"{row['parameters']:,}",
            "" if row["bytes"] is None else f"{row['bytes'] / 1e6:,.1f}",
        )
    return table


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
