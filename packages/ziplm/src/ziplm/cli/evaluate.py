"""``ziplm evaluate``: the metrics of a checkpoint on a task."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ziplm.cli.options import data_options, option
from ziplm.options.source import Source
from ziplm.options.values import parsed_settings
from ziplm.pipelines.evaluation import evaluate_checkpoint, write_predictions
from ziplm.runs.progress import Bars
from ziplm.tasks import TASKS


@click.command(epilog="Example: ziplm evaluate runs/sst2/2x --task sst2 --validation-file dev.tsv")
@click.argument("checkpoint")
@click.option("--task", required=True, help=f"One of {', '.join(TASKS)}.")
@option("--task-option", multiple=True, metavar="NAME=VALUE", help="Setting of the task, such as stride=64.")
@click.option("--dense", metavar="MODEL", help="Dense model, for metrics of embeddings that compare with it.")
@data_options
@option(
    "--sequence-length",
    type=click.IntRange(min=1),
    help="Maximum length of an example, if --max-length is not given.",
)
@click.option(
    "--batch-size", default=32, show_default=True, type=click.IntRange(min=1), help="Examples per batch."
)
@option("--device", help="Device such as cpu or cuda:0.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--predictions",
    type=Path,
    metavar="FOLDER",
    help="Write predictions for --eval-file in the format of the GLUE server, and no metrics.",
)
def evaluate(
    checkpoint: str,
    task: str,
    task_option: tuple[str, ...],
    dense: str | None,
    max_length: int | None,
    sequence_length: int,
    batch_size: int,
    device: str,
    as_json: bool,
    predictions: Path | None,
    **data: Any,
) -> None:
    """Print the metrics of CHECKPOINT, a folder or a name on the hub, dense or shrunk."""
    source = _source(**data)
    loading: dict[str, Any] = {
        "task_settings": parsed_settings(task_option),
        "max_length": max_length or sequence_length,
        "device": device,
    }
    if predictions is not None:
        write_predictions(checkpoint, task, source, predictions, **loading)
        return
    found = evaluate_checkpoint(
        checkpoint, task, source, dense=dense, batch_size=batch_size, reporter=Bars(), **loading
    )
    console = Console(highlight=False)
    if as_json:
        console.print_json(json.dumps(found.metrics))
        return
    table = Table("split", "metric", "value", "95 % interval")
    for name, metrics in found.metrics.items():
        for metric, value in metrics.items():
            interval = found.intervals[name].get(metric)
            ends = "" if interval is None else f"[{interval[0]:.4f}, {interval[1]:.4f}]"
            table.add_row(name, metric, f"{value:.4f}", ends)
    console.print(table)


def _source(text_column: tuple[str, ...], **data: Any) -> Source:
    """Make the source from the values of `data_options`."""
    return Source(text_columns=text_column, train=False, **data)
