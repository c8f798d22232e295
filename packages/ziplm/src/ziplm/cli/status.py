"""``ziplm status``: the progress of a run."""

import json
from pathlib import Path

import rich_click as click


@click.command(epilog="Example: ziplm status runs/sst2")
@click.argument("folder", type=Path, metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(folder: Path, as_json: bool) -> None:
    """Show what RUN has finished, how long its stages took, and the models made so far."""
    from rich.console import Console

    from ziplm.results.family import read_family
    from ziplm.results.status import read_status
    from ziplm.results.table import print_family
    from ziplm.runs.folder import Run

    found = read_status(Run(folder))
    family = read_family(Run(folder), found.targets)
    if as_json:
        click.echo(json.dumps({**found.to_dict(), **family.to_dict()}, indent=1))
        return
    click.echo(str(found))
    if family:
        print_family(family, Console(highlight=False))
