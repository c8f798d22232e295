"""`compress`: a model and its targets in, a family of smaller models out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ziplm.config import Config
from ziplm.gradual import compress_gradually
from ziplm.member import Member, check_reachable
from ziplm.pipeline import Pipeline
from ziplm.progress import Bars, Reporter, Silent
from ziplm.run import open_run
from ziplm.targets import targets_of
from ziplm.workers import join


@dataclass(frozen=True)
class Compressed:
    """One finished target.

    Attributes:
        target: its name, such as ``2x``.
        folder: the checkpoint, for `ziplm.load` or transformers.
        metrics: what metrics.json holds.
    """

    target: str
    folder: Path
    metrics: dict[str, Any]


def compress(
    model: str | None = None,
    task: str | None = None,
    *,
    output: str | Path | None = None,
    config: Config | None = None,
    progress: bool | Reporter = False,
    **options: Any,
) -> list[Compressed]:
    """Make a family of smaller models, one for each target, each measured to be as fast as asked.

    The same call goes on where a killed one was. See `Config` for all options. Every process of a torchrun
    may make it: they share the work, and each returns the same.

    Args:
        model: a folder, or a name on the hub.
        task: a name of `ziplm.tasks.TASKS`.
        output: the run folder.
        config: all of it at once, instead.
        progress: whether to show bars on stderr, in the first process only.
        options: of `Config`, such as ``speedup=[2, 4]``.

    Returns:
        What was made, the slowest first.

    Raises:
        ZipLMError: with what is wrong and what to do.
    """
    if config is None:
        config = Config.of({"model": model, "task": task, "output": str(output or ""), **options})
    reporter = progress if not isinstance(progress, bool) else Bars() if progress else Silent()
    targets = targets_of(config)
    workers = join(config.device)
    if workers.rank > 0:
        reporter = Silent()
    with open_run(config, workers) as run:
        pipeline = Pipeline(config, run, reporter)
        todo = workers.first(lambda: [target for target in targets if not run.is_done(target.name)])
        if config.mode == "gradual":  # the targets of earlier commands are steps on the way
            compress_gradually(pipeline, targets_of(Config.load(run.config_file)))
        elif todo:
            check_reachable(pipeline, todo)
            for target in todo:
                reporter.note(f"target {target.name}")
                Member(pipeline, target).make()
        return [
            Compressed(target.name, run.result_folder(target.name), run.metrics(target.name))
            for target in targets
        ]
