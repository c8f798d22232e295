"""``ziplm status``: the progress of a run."""

from pathlib import Path

import click
from rich.console import Console

from ziplm.errors import BadRun
from ziplm.options.options import Options
from ziplm.options.toml import load_options
from ziplm.results.family import read_family
from ziplm.results.table import print_family
from ziplm.runs.folder import Run


@click.command(epilog="Example: ziplm status runs/sst2")
@click.argument("run", type=Path)
def status(run: Path) -> None:
    """Show which stages of RUN are done, how long they took, and the models made so far."""
    folder = Run(run)
    if not folder.options_file.is_file():
        raise BadRun(f"{run} is no run folder", "give the --output of ziplm compress")
    options = load_options(folder.options_file)
    targets = options.targets()
    console = Console(highlight=False)
    console.print(f"{options.model} for {options.task} in {run}", markup=False, soft_wrap=True)
    if not folder.marker_file.exists():
        console.print("made by ziplm 0.1: it can be read, but not resumed", markup=False)
    done = _stages_done(folder, options)
    done |= {f"target {target.name}": folder.is_done(target.name) for target in targets}
    for what, is_done in done.items():
        console.print(f"  {'done' if is_done else 'to do':5}  {what}", markup=False)
    if folder.seconds:
        spent = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in folder.seconds.items())
        console.print(f"so far: {spent}", markup=False, soft_wrap=True)
    if family := read_family(folder, targets):
        print_family(family, console)


def _stages_done(run: Run, options: Options) -> dict[str, bool]:
    """Return which of the stages before the targets are done, by description."""
    done = {"latency table": run.latency_file.exists()}
    if options.trains_dense:
        done["dense model"] = (run.dense_folder / "config.json").exists()
    if options.mode == "oneshot":  # in gradual runs, each target has its own
        fisher = run.fisher_file.exists() or (run.state / "metric.safetensors").exists()  # its name in 0.1
        traces = len(list((run.state / "traces").glob("*.safetensors")))
        searching = (run.state / "targets").exists()  # the first search starts when all traces exist
        done["fisher"] = fisher or not options.gradients
        done[f"traces of branches ({traces} so far)"] = searching
    return done
