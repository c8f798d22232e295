"""Load damaged files in child processes with limits of memory and time, and count what came of it."""

import errno
import json
import logging
import os
import random
import resource
import shutil
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from latency_profiler._probe import choose_instructions
from transformers.utils.logging import disable_progress_bar

from ziplm_fuzz.guard import Guard
from ziplm_fuzz.loaders import LOADERS, Loader
from ziplm_fuzz.mutate import mutate

MEMORY = 3 * 2**30  # bytes beyond those that the parent has mapped
CPU_SECONDS, SECONDS = 20.0, 120.0  # for one file; the second counts waiting, too
BATCH = 40  # files for each child
UNREADABLE = (errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENOTDIR)
LONGEST = 500  # characters of a message
UNDAMAGED = -1  # number of the case of each loader in which nothing is damaged: it must load
FILES = "a/b/files"  # folder of the files of a case; damaged paths lead up from it


@dataclass(frozen=True)
class Case:
    """One damaged file: everything about it follows from the seed, the loader and the number."""

    seed: int
    loader: str
    number: int

    @property
    def dice(self) -> random.Random:
        """The source of randomness for this case."""
        return random.Random(f"{self.seed}/{self.loader}/{self.number}")


@dataclass(frozen=True)
class Result:
    """What came of a case; a failure is anything but success and our own one-line errors."""

    case: Case
    outcome: str
    failed: bool
    detail: str


def cases(seed: int, files: int, names: list[str]) -> list[Case]:
    """Return that many cases, shared out among the loaders, and an undamaged one for each loader before."""
    total = sum(LOADERS[name].share for name in names)
    return [
        Case(seed, name, number)
        for name in names
        for number in range(UNDAMAGED, max(1, round(files * LOADERS[name].share / total)))
    ]


def run_cases(chosen: list[Case], scratch: Path, keep: Path) -> Iterator[Result]:
    """Load all cases, in children of this process; failed cases are kept in a folder."""
    place = scratch / "case"
    sample_folders = {
        name: _sample(name, scratch, place) for name in dict.fromkeys(case.loader for case in chosen)
    }
    waiting = list(chosen)
    while waiting:
        batch = [case for case in waiting[:BATCH] if case.loader == waiting[0].loader]
        done = 0
        for result in _in_child(batch, sample_folders[batch[0].loader], place, keep):
            done += 1
            yield result
        waiting = waiting[done:]


def _sample(name: str, scratch: Path, place: Path) -> Path:
    """Write the sample of a loader once; loaders share samples.

    It is written where the cases will be, because some files hold the paths of others.
    """
    make = LOADERS[name].sample
    folder = scratch / "samples" / make.__name__
    if not folder.exists():
        (place / FILES).mkdir(parents=True)
        _make_in_child(make, place / FILES)
        folder.parent.mkdir(exist_ok=True)
        (place / FILES).rename(folder)
        shutil.rmtree(place)
    return folder


def _make_in_child(make: Callable[[Path], object], folder: Path) -> None:
    """Make a sample in a child: an engine that has run in this process would not run in its children."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            make(folder)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError(f"the sample {make.__name__} cannot be made")


def _in_child(batch: list[Case], sample: Path, place: Path, keep: Path) -> Iterator[Result]:
    """Fork, load the cases one by one, and yield their results; if the child dies, its last case failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            for ending in (signal.SIGPROF, signal.SIGALRM):
                signal.signal(ending, signal.SIG_DFL)  # ends the process, also while it runs native code
            _limit_memory()
            guard = Guard()
            for case in batch:
                line = json.dumps(asdict(_load(case, sample, place, keep, guard))) + "\n"
                os.write(writing, line.encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    done = 0
    with os.fdopen(reading) as lines:
        for line in lines:
            values = json.loads(line)
            done += 1
            yield Result(Case(**values.pop("case")), **values)
    _, status = os.waitpid(child, 0)
    if status and done < len(batch):
        ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        outcome = "hang" if ended in (signal.SIGPROF, signal.SIGALRM) else "crash"
        _keep(place, keep, batch[done])
        yield Result(batch[done], outcome, True, signal.Signals(ended).name if ended else "died")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _load(case: Case, sample: Path, place: Path, keep: Path, guard: Guard) -> Result:
    """Damage a copy of the sample and load it, within the time for one file."""
    loader, dice = LOADERS[case.loader], case.dice
    shutil.rmtree(place, ignore_errors=True)
    folder, output, outside = place / FILES, place / "a/b/output", place / "outside"
    shutil.copytree(sample, folder)
    output.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("{}")
    files = sorted(file for pattern in loader.files for file in folder.glob(pattern))
    file = dice.choice(files)
    done = mutate(file, outside, dice) if case.number != UNDAMAGED else "nothing"
    guard.allowed, guard.seen = ((output, folder) if loader.writes else (output,)), []
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    outcome, failed, detail = _outcome(loader, folder, output)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    guard.allowed = None
    if case.number == UNDAMAGED and outcome != "loaded":
        outcome, failed = "control", True
    if guard.seen:
        outcome, failed, detail = "outside", True, guard.seen[0]
    if failed:
        _keep(place, keep, case)
    return Result(case, outcome, failed, f"{file.name}, {done}: {detail}"[:2000])


def _outcome(loader: Loader, folder: Path, output: Path) -> tuple[str, bool, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader.load(folder, output)
    except loader.errors as error:
        text = str(error)
        if type(error) is ValueError and str(folder) not in text:
            return "foreign", True, _where(error)
        if len(text) > LONGEST + 20 or "\n" in text:
            return "message", True, f"{len(text)} characters, {text.count(chr(10)) + 1} lines: {text[:600]!r}"
        return "refused", False, f"{type(error).__name__}: {text}"
    except OSError as error:
        unreadable = error.errno in UNREADABLE and error.filename is not None
        return ("unreadable", False, str(error)) if unreadable else ("foreign", True, _where(error))
    except BaseException as error:
        return "foreign", True, _where(error)
    return "loaded", False, ""


def _where(error: BaseException) -> str:
    """Return an exception's type and message, and the last places in the stack, ours first."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/packages/" in frame.filename and "ziplm_fuzz" not in frame.filename]
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in (*own[-2:], *frames[-1:])]
    return f"{type(error).__name__}: {str(error)[:200]!r} at {' < '.join(reversed(places))}"


def _keep(place: Path, keep: Path, case: Case) -> None:
    target = keep / f"{case.loader}-{case.seed}-{case.number}".replace(" ", "-")
    shutil.rmtree(target, ignore_errors=True)
    keep.mkdir(parents=True, exist_ok=True)
    if place.exists():
        place.rename(target)


def fuzz(
    seed: int, files: int, keep: Path, names: list[str] | None = None, number: int | None = None
) -> Iterator[Result]:
    """Run a fuzz, or only one case of each loader, and yield the results of all cases.

    Args:
        seed: seed of the damage.
        files: number of damaged files.
        keep: folder for the files of failed cases.
        names: names of the loaders; all of them by default.
        number: the only case of each loader to run, as a failure names it.
    """
    disable_progress_bar()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        chosen = cases(seed, files, names or list(LOADERS))
        if any(case.loader == "exported openvino" for case in chosen):
            choose_instructions("f32")  # once, because it starts a process, and loaders must start none
        if number is not None:
            chosen = [Case(seed, name, number) for name in dict.fromkeys(case.loader for case in chosen)]
        yield from run_cases(chosen, Path(scratch), keep)


def summary(results: list[Result]) -> str:
    """Return a table of the counts of damaged files, by loader and outcome."""
    results = [result for result in results if result.case.number != UNDAMAGED]
    outcomes = ["loaded", "refused", "unreadable", "message", "foreign", "hang", "crash", "outside"]
    counts = Counter((result.case.loader, result.outcome) for result in results)
    names = list(dict.fromkeys(result.case.loader for result in results))
    counts += Counter(("**all**", result.outcome) for result in results)
    rows = [
        [name, *(str(counts[name, outcome] or "") for outcome in outcomes)] for name in (*names, "**all**")
    ]
    lines = [["loader", *outcomes], ["---", *["---:"] * len(outcomes)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
