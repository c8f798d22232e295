"""``ziplm profile``: measure the latency table of a model."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ziplm.architectures.checkpoint import load
from ziplm.architectures.registry import architecture_of
from ziplm.cli.options import environment_options, option, setting_of
from ziplm.runs.progress import Bars
from ziplm.stages.profile import latency_table
from ziplm.stages.workload import environment_of


@click.command(epilog="Example: ziplm profile bert-base-uncased --batch-size 1 --threads 4 -o latency.json")
@click.argument("model")
@click.option(
    "-o", "--output", required=True, type=Path, metavar="FILE", help="File to write the latency table to."
)
@environment_options
@option("--profile-seconds", type=float, help="Time limit of the measurement.")
def profile(
    model: str, output: Path, profile_seconds: float, attention: str | None, **environment: Any
) -> None:
    """Measure the time of every size of MODEL's branches on this machine.

    Pass the file to `ziplm compress --latency-table` on a machine that is better suited for pruning, or look
    at it with `latency-profiler show` and `latency-profiler plot`.
    """
    setting = setting_of(**environment)
    environment_of(setting, attention)  # fails before anything is loaded
    loaded = load(model, **({"attn_implementation": attention} if attention else {}))
    architecture_of(loaded)
    with Bars().stage("profile") as advance:
        table = latency_table(
            loaded, setting, max_seconds=profile_seconds, progress=lambda rounds, used: advance(used, 1.0)
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    table.save(output)
    Console(highlight=False).print(str(table), markup=False, soft_wrap=True)
