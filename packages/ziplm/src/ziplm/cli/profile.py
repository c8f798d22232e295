"""``ziplm profile``: the latency table of a model, alone."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ziplm.adapters import adapter_for
from ziplm.checkpoint import load
from ziplm.cli.options import environment_options, option, setting_of
from ziplm.profile import latency_table
from ziplm.progress import Bars


@click.command(epilog="Example: ziplm profile bert-base-uncased --batch-size 1 --threads 4 -o latency.json")
@click.argument("model")
@click.option("-o", "--output", required=True, type=Path, metavar="FILE", help="For --latency-table.")
@environment_options
@option("--profile-seconds", type=float, help="Longest time to measure.")
def profile(
    model: str, output: Path, profile_seconds: float, attention: str | None, **environment: Any
) -> None:
    """Measure what every size of MODEL's modules costs on this machine.

    Give the file to `ziplm compress --latency-table` on a machine that is better for pruning, or look at it
    with `latency-profiler show` and `latency-profiler plot`.
    """
    setting = setting_of(**environment)
    setting.environment(attention)
    loaded = load(model, **({"attn_implementation": attention} if attention else {}))
    adapter_for(loaded)
    with Bars().stage("profile") as advance:
        table = latency_table(
            loaded, setting, max_seconds=profile_seconds, progress=lambda rounds, used: advance(used, 1.0)
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    table.save(output)
    Console(highlight=False).print(str(table), markup=False, soft_wrap=True)
