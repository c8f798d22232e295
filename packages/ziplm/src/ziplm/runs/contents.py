"""The contents of a run folder: no link is followed, and what is not ours is never replaced or deleted."""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ziplm.errors import BadRun
from ziplm.files import PARTIAL
from ziplm.runs.folder import Run


def require_own_contents(run: Run, targets: Iterable[str]) -> None:
    """Raise BadRun if a link, or something that is not ours, stands where the run reads or writes.

    Names that the run does not use are left alone, whatever they are.
    """
    files = (run.options_file, run.latency_file, run.family_file, run.fingerprints_file, run.log_file)
    for path in files:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise BadRun(f"{path} is not an ordinary file", "move it away and run the command again")
    for path in (run.folder / "state", run.inputs_folder, run.dense_folder):
        _require_folder(path)
        for link in _links_in(path):
            raise BadRun(f"{link} is a symbolic link, which ziplm does not follow", "choose another --output")
    for target in targets:
        require_free_or_done(run.member_folder(target), "metrics.json")
    require_free_or_done(run.dense_folder, "config.json")


def require_free_or_done(folder: Path, last_file: str) -> None:
    """Raise BadRun if a folder that the run makes exists and lacks the file that is always in it."""
    _require_folder(folder)
    if folder.exists() and not (folder / last_file).is_file():
        raise BadRun(
            f"{folder} was not made by this run: it has no {last_file}",
            "move it away, or choose another --output",
        )


def require_free(folder: Path) -> None:
    """Raise BadRun if something has appeared where the run is about to put a folder."""
    if folder.exists() or folder.is_symlink():
        raise BadRun(f"{folder} has appeared since the run was started", "move it away and run it again")


def _require_folder(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise BadRun(f"{path} is not an ordinary folder", "move it away, or choose another --output")


def _links_in(folder: Path) -> Iterator[Path]:
    """Return all symbolic links below a folder; none of them is followed."""
    for place, folders, files in os.walk(folder):
        yield from (path for name in (*folders, *files) if (path := Path(place, name)).is_symlink())


def remove_leftovers(run: Run) -> None:
    """Delete what killed processes were writing, and what they had not yet deleted of finished targets.

    Call it only in a folder that is recognised and locked.
    """
    places = [run.folder]
    for folder in (run.folder / "state", run.inputs_folder):
        places += [Path(place) for place, _, _ in os.walk(folder)]
    for place in places:
        for path in place.glob(f".*{PARTIAL}"):  # a folder that was deleted with its parent has none
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for folder in run.unneeded_folders():
        shutil.rmtree(folder)


def has_results(run: Run) -> bool:
    """Return whether the run has results; a command that failed early leaves only its options."""
    return (
        run.latency_file.exists()
        or any(path != run.now_file for path in run.state.glob("*"))
        or any(run.folder.glob("*/metrics.json"))
    )
