"""``ziplm finetune``: train a checkpoint for a task, so that there is something to compress."""

from pathlib import Path
from typing import Any

import rich_click as click
from rich.text import Text

from ziplm.cli.options import given, options
from ziplm.options.options import Options
from ziplm.options.training import TrainingOptions
from ziplm.tasks import TASKS

DATA = ("train_file", "text_column", "label_column", "max_length", "task_option", "device")
DEFAULTS = TrainingOptions()
EXAMPLES = Text(
    r"""Examples:
  ziplm finetune sentence-transformers/all-MiniLM-L6-v2 --new-head \
      --task classification --train-file train.csv -o models/mine
  ziplm finetune runs/mine/3x --task classification --train-file train.csv \
      --teacher models/mine -o models/mine-3x"""
)


@click.command(epilog=EXAMPLES)
@click.argument("checkpoint")
@click.option("--task", required=True, help=f"One of {', '.join(TASKS)}.")
@click.option("-o", "--output", required=True, type=Path, help="Folder for the fine-tuned model.")
@click.option(
    "--new-head", is_flag=True, help="Give the model a new head, with the labels of the training data."
)
@click.option(
    "--teacher",
    metavar="MODEL",
    help="Checkpoint to distill from, with as many layers; labels are then not used.",
)
@options(DATA, panel="Options", unset={"max_length": "128"})
@click.option("--epochs", default=DEFAULTS.epochs, show_default=True, help="Passes over the data.")
@click.option("--steps", type=int, help="Optimizer steps, instead of epochs.")
@click.option(
    "--learning-rate", default=DEFAULTS.learning_rate, show_default=True, help="Peak learning rate."
)
@click.option(
    "--batch-size", default=DEFAULTS.batch_size, show_default=True, help="Examples per step of the optimizer."
)
@click.option(
    "--seed",
    default=DEFAULTS.seed,
    show_default=True,
    help="Seed of the new head, of the order of examples and of dropout.",
)
@click.pass_context
def finetune(
    context: click.Context,
    /,
    checkpoint: str,
    task: str,
    output: Path,
    new_head: bool,
    teacher: str | None,
    epochs: float,
    steps: int | None,
    learning_rate: float,
    batch_size: int,
    seed: int,
    **_: Any,
) -> None:
    """Fine-tune CHECKPOINT, a folder or a name on the hub, dense or shrunk, and save the result.

    A killed command resumes when it is repeated, from the folder OUTPUT-training.
    """
    training = TrainingOptions(
        learning_rate=learning_rate,
        epochs=epochs,
        max_steps=-1 if steps is None else steps,
        batch_size=batch_size,
        seed=seed,
    )
    asked = Options(**{name: value for name, value in given(context).items() if name in DATA})

    from ziplm.pipelines.finetuning import finetune_checkpoint
    from ziplm.runs.progress import Bars

    summary = finetune_checkpoint(
        checkpoint,
        task,
        asked.source,
        output,
        training,
        teacher=teacher,
        task_settings=asked.task_settings,
        new_head=new_head,
        max_length=asked.max_length or asked.data_length,
        device=asked.device,
        reporter=Bars(),
    )
    last = f", loss {summary.losses[-1][1]:.3g} at the end" if summary.losses else ""
    click.echo(f"saved in {output} after {summary.steps} steps with {summary.examples} examples{last}")
