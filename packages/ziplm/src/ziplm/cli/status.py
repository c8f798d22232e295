"""``ziplm status``: how far a run is."""

from pathlib import Path

import click
from rich.console import Console

from ziplm.compress import Compressed
from ziplm.config import Config
from ziplm.errors import BadRun
from ziplm.report import print_family
from ziplm.run import Run
from ziplm.targets import targets_of


@click.command(epilog="Example: ziplm status runs/sst2")
@click.argument("run", type=Path)
def status(run: Path) -> None:
    """Show which stages of RUN are done, what they took, and the models that there are."""
    folder = Run(run)
    if not folder.config_file.is_file():
        raise BadRun(f"{run} is no run folder", "give the --output of ziplm compress")
    config = Config.load(folder.config_file)
    targets = targets_of(config)
    console = Console(highlight=False)
    console.print(f"{config.model} for {config.task} in {run}", markup=False, soft_wrap=True)
    traces = len(list((folder.state / "traces").glob("*.safetensors")))
    searched = folder.state / "targets"  # the first search begins when all traces are there
    stages = {
        "loss metric": folder.metric_file.exists() or not config.gradients,
        f"traces of modules ({traces} so far)": searched.exists(),
    }
    trained = {"dense model": (folder.folder / "dense" / "config.json").exists()}
    done = {
        "latency table": folder.latency_file.exists(),
        **(trained if config.trains_dense else {}),
        **(stages if config.mode == "oneshot" else {}),  # gradual: each target has its own
        **{f"target {target.name}": folder.is_done(target.name) for target in targets},
    }
    for what, is_done in done.items():
        console.print(f"  {'done' if is_done else 'to do':5}  {what}", markup=False)
    if folder.seconds:
        spent = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in folder.seconds.items())
        console.print(f"so far: {spent}", markup=False, soft_wrap=True)
    finished = [target.name for target in targets if folder.is_done(target.name)]
    family = [Compressed(name, folder.result_folder(name), folder.metrics(name)) for name in finished]
    if family:
        print_family(family, console)
