"""``ziplm evaluate``: the metrics of a checkpoint on a task."""

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from ziplm.benchmarking import Setting
from ziplm.cli.options import data_options, option
from ziplm.errors import UsageError
from ziplm.option_values import parsed_settings
from ziplm.progress import Bars
from ziplm.tasks import TASKS, Source, make_task
from ziplm.tasks.glue import GlueTask


@click.command(epilog="Example: ziplm evaluate runs/sst2/2x --task sst2 --validation-file dev.tsv")
@click.argument("checkpoint")
@click.option("--task", required=True, help=f"One of {', '.join(TASKS)}.")
@option("--task-option", multiple=True, metavar="NAME=VALUE", help="Setting of the task, as stride=64.")
@click.option("--dense", metavar="MODEL", help="To compare neighbours of embeddings with.")
@data_options
@option(
    "--sequence-length", type=click.IntRange(min=1), help="Longest example, if --max-length is not given."
)
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(min=1))
@option("--device", help="Such as cpu or cuda:0.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--predictions", type=Path, metavar="FOLDER", help="Write GLUE server files of --eval-file.")
def evaluate(
    checkpoint: str,
    task: str,
    task_option: tuple[str, ...],
    dense: str | None,
    train_file: str | None,
    validation_file: str | None,
    eval_file: str | None,
    text_column: tuple[str, ...],
    label_column: str | None,
    max_length: int | None,
    sequence_length: int,
    batch_size: int,
    device: str,
    as_json: bool,
    predictions: Path | None,
) -> None:
    """Print the metrics of CHECKPOINT, a folder or a name on the hub, dense or shrunk."""
    kind = make_task(task, **parsed_settings(task_option))
    Setting(device=device).environment(None)  # there is such a device
    model = kind.load_model(checkpoint)
    model.to(device)  # type: ignore[arg-type]
    tokenizer = kind.load_tokenizer(checkpoint)
    source = Source(train_file, validation_file, eval_file, text_column, label_column, train=False)
    length = min(max_length or sequence_length, model.config.max_position_embeddings)
    if predictions is not None:
        if not isinstance(kind, GlueTask):
            raise UsageError(f"there are no prediction files for {task}", "they are for GLUE's tasks only")
        for name, features in kind.load_test(model, tokenizer, source, length).items():
            kind.write_predictions(model, features, predictions / name)
        return
    bars = Bars()
    splits = kind.load_splits(model, tokenizer, source, length)
    if not splits.evaluation:
        raise UsageError("there is nothing to evaluate on", "give --validation-file")
    found = {}
    for name, features in splits.evaluation.items():
        if dense is not None:
            kind.prepare_reference(kind.load_model(dense), features)
        with bars.stage(f"evaluate: {name}") as advance:
            found[name] = kind.evaluate(model, features, batch_size, progress=advance)
    console = Console(highlight=False)
    if as_json:
        console.print_json(json.dumps(found))
        return
    table = Table("split", "metric", "value")
    for name, metrics in found.items():
        for metric, value in metrics.items():
            table.add_row(name, metric, f"{value:.4f}")
    console.print(table)
