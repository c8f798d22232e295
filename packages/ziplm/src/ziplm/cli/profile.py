"""``ziplm profile``: measure the latency table of a model."""

from pathlib import Path
from typing import Any

import rich_click as click

from ziplm.cli.options import ENVIRONMENT, default_of, given, options, setting_of


@click.command(epilog="Example: ziplm profile bert-base-uncased --batch-size 1 --threads 4 -o latency.json")
@click.argument("model")
@click.option(
    "-o", "--output", required=True, type=Path, metavar="FILE", help="File to write the latency table to."
)
@options(ENVIRONMENT)
@options(["profile_seconds"])
@click.pass_context
def profile(context: click.Context, /, model: str, output: Path, profile_seconds: Any, **_: Any) -> None:
    """Measure the time of every size of MODEL's branches on this machine.

    Pass the file to `ziplm compress --latency-table` on a machine that is better suited for pruning, or look
    at it with `latency-profiler show` and `latency-profiler plot`.
    """
    from ziplm.architectures.checkpoint import load
    from ziplm.architectures.registry import architecture_of
    from ziplm.runs.progress import Bars
    from ziplm.stages.choices import Choices
    from ziplm.stages.levels import branch_levels
    from ziplm.stages.profile import latency_table
    from ziplm.stages.workload import describe, environment_of, setting_for

    said = given(context)
    seconds = said.pop("profile_seconds", default_of("profile_seconds"))
    setting, attention = setting_of(said)
    environment_of(setting, attention)  # fails before anything is loaded
    loaded = load(model, **({"attn_implementation": attention} if attention else {}))
    architecture_of(loaded)
    with Bars().stage("profile") as advance:
        table = latency_table(
            loaded, setting, max_seconds=seconds, progress=lambda rounds, used: advance(used, 1.0)
        )
    click.echo(f"measured: {describe(setting_for(setting, [loaded]))}", err=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    table.save(output)
    click.echo(str(table))
    architecture = architecture_of(loaded)
    choices = Choices(
        branch_levels(architecture, loaded), {}, table, dense_branches=architecture.branches(loaded)
    )
    click.echo("\n".join(choices.reach_lines()), err=True)
