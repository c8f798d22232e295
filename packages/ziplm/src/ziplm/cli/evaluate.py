"""``ziplm evaluate``: the metrics of a checkpoint or an exported file on a task."""

import json
from pathlib import Path
from typing import Any

import rich_click as click

from ziplm.cli.options import given, options
from ziplm.options.options import Options
from ziplm.tasks import TASKS

DATA = ("validation_file", "eval_file", "text_column", "label_column", "max_length", "task_option", "device")


@click.command(epilog="Example: ziplm evaluate runs/sst2/2x --task sst2 --validation-file dev.tsv")
@click.argument("checkpoint")
@click.option("--task", required=True, help=f"One of {', '.join(TASKS)}.")
@click.option(
    "--dense", metavar="MODEL", help="Dense model to compare with, which only embeddings without scores need."
)
@options(DATA, panel="Options", unset={"max_length": "128"})
@click.option(
    "--batch-size", default=32, show_default=True, type=click.IntRange(min=1), help="Examples per batch."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--predictions",
    type=Path,
    metavar="FOLDER",
    help="Write predictions for the GLUE server, on the given file or the test split, and print no metrics.",
)
@click.option("--train-file", hidden=True)
@click.option("--sequence-length", type=click.IntRange(min=1), hidden=True)
@click.pass_context
def evaluate(
    context: click.Context,
    /,
    checkpoint: str,
    task: str,
    dense: str | None,
    batch_size: int,
    as_json: bool,
    predictions: Path | None,
    sequence_length: int | None,
    **_: Any,
) -> None:
    """Print the metrics of CHECKPOINT, a folder or a name on the hub, dense or shrunk.

    An exported file (.onnx or .xml), or a folder with one and no checkpoint, is evaluated in its engine.
    """
    from dataclasses import replace

    from ziplm.pipelines.evaluation import evaluate_checkpoint, write_predictions
    from ziplm.runs.progress import Bars

    asked = Options(**{name: value for name, value in given(context).items() if name in DATA})
    source = replace(asked.source, train=False)
    loading: dict[str, Any] = {
        "task_settings": asked.task_settings,
        "max_length": asked.max_length or sequence_length or asked.data_length,
        "device": asked.device,
    }
    if predictions is not None:
        write_predictions(checkpoint, task, source, predictions, **loading)
        return
    found = evaluate_checkpoint(
        checkpoint, task, source, dense=dense, batch_size=batch_size, reporter=Bars(), **loading
    )
    if as_json:
        click.echo(json.dumps(found.metrics, indent=1))
        return
    _print(found)


def _print(found: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("split", "metric", "value", "95 % interval")
    for name, metrics in found.metrics.items():
        for metric, value in metrics.items():
            interval = found.intervals[name].get(metric)
            ends = "" if interval is None else f"[{interval[0]:.4f}, {interval[1]:.4f}]"
            table.add_row(name, metric, f"{value:.4f}", ends)
    Console(highlight=False).print(table)
