"""Steps that run for each target: search, fit, shrink, measure, save; `refit_steps` has the refit.

Each step runs a stage within a run: it reports progress, decides which processes take part, and may store the
result in the run folder.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ziplm.architectures.base import Size
from ziplm.architectures.checkpoint import save
from ziplm.architectures.inspection import size_on_disk
from ziplm.files import write_json
from ziplm.options.targets import Target
from ziplm.pipelines.engine_steps import briefly_in_engine, dense_in_engine
from ziplm.pipelines.evaluation_steps import evaluate_dense, predict
from ziplm.pipelines.recover import Candidate, Guess, bisect_speedup
from ziplm.pipelines.report import exported_report
from ziplm.pipelines.stored import fitted_in, found_in, guess_in, measured_in
from ziplm.pipelines.values import Pruned, Start
from ziplm.results.card import write_card
from ziplm.results.sizes import sizes_text
from ziplm.runs.contents import require_free
from ziplm.runs.folder import Run
from ziplm.runs.progress import Advance
from ziplm.stages.choices import Levels
from ziplm.stages.fit import ROUGH_ROUNDS, ROUGH_SHARE, Fitted, fit_levels
from ziplm.stages.measure import MIN_ROUNDS, Measured, measure
from ziplm.stages.race import batch_size_on
from ziplm.stages.search import Found, Judge, Loss, Race, find_levels
from ziplm.stages.shrink import shrink_to_sizes
from ziplm.stages.stitch import CandidateLoss, Stitcher
from ziplm.tasks.base import Features


def loss_on(start: Start, features: Sequence[Features], stitcher: Stitcher, run: Run) -> CandidateLoss:
    """Return the loss of candidates on some samples, beside the dense model; processes share the batches."""
    return CandidateLoss(
        stitcher,
        start.task,
        features,
        reference=start.dense_outputs,
        loss=start.options.loss,
        batch_size=batch_size_on(features, start.options.calibration_batch_size),
        workers=run.workers,
    )


def search(start: Start, pruned: Pruned, aim: Target, state: Path, run: Run) -> Found:
    """Find levels within the budgets of a target; the first process searches, all compute each loss."""
    options = start.options

    def make() -> dict[str, Any]:
        state.mkdir(parents=True, exist_ok=True)
        with run.stage("search") as advance:
            stitcher = Stitcher(pruned.current, pruned.traces)  # its caches are dropped before measuring
            search_loss = loss_on(start, pruned.samples.search, stitcher, run)
            judging_loss = loss_on(start, pruned.samples.judging, stitcher, run)

            def find(loss: Loss, judge: Judge, race: Race) -> Found:
                return find_levels(
                    pruned.choices,
                    pruned.budgets(aim),
                    pruned.prior_names,
                    loss,
                    judge,
                    race=race,
                    method=options.search,
                    evaluations=options.evaluations,
                    seed=pruned.seed,
                    checkpoint=state / "search.json",
                    progress=lambda done, best: advance(done, options.evaluations),
                )

            return run.workers.led(find, search_loss, judging_loss.parts, search_loss.race).to_dict()

    found: Found = run.stored(
        state / "found.json", make, parse=lambda document: found_in(document, pruned, aim)
    )
    losses = ", ".join(f"{name} {loss:.4g}" for name, loss in found.prior_losses.items())
    run.detail(f"search: losses of the priors' solutions: {losses}; {found.evaluations} evaluations")
    if found.searched_loss is not None:
        run.detail(
            f"search: loss on the judging samples {found.start_loss:.4g} before and "
            f"{found.searched_loss:.4g} after the search"
        )
    return found


def fit(start: Start, pruned: Pruned, found: Found, aim: Target, state: Path, run: Run) -> Fitted:
    """Correct the levels by measurements of the whole model; only the first process measures.

    With a latency table from elsewhere nothing is measured, and the levels stay.
    """

    def measure_levels(levels: Levels) -> Measured:
        small = shrink_to(pruned, levels)
        with run.stage("fit", "fit: measure") as advance, briefly_in_engine(start, small) as served:
            measured = _measured_beside_dense(start, served, run, advance, roughly=True)
        predicted = pruned.choices.dense_seconds / pruned.choices.seconds(levels)
        run.reporter.note(f"fit: measured {measured}, predicted {predicted:.2f}x")
        return measured

    def make() -> dict[str, Any]:
        if start.options.latency_table is not None:
            return Fitted(found.levels, []).to_dict()
        correct = partial(
            fit_levels,
            pruned.choices,
            found.levels,
            found.prior,
            pruned.budgets(aim),
            measure_levels,
            absolute=aim.kind == "latency",
            say=run.reporter.note,
        )
        return run.workers.first(correct).to_dict()

    fitted: Fitted = run.stored(
        state / "fitted.json",
        make,
        parse=lambda document: fitted_in(
            document, pruned, aim, found, measured=start.options.latency_table is None
        ),
    )
    run.detail(f"sizes (heads/width of each layer): {sizes_text(pruned.choices.sizes(fitted.levels))}")
    return fitted


def measure_finished(start: Start, served: PreTrainedModel, state: Path, run: Run) -> Measured | None:
    """Measure the finished model, with the weights that are saved, beside the dense one in the same engine.

    This measurement is what the report says; it is independent of those that chose the levels. Only the first
    process measures. With a latency table from elsewhere nothing is measured.
    """
    if start.options.latency_table is not None:
        return None

    def make() -> dict[str, Any]:
        with run.stage("measure") as advance:
            measured = _measured_beside_dense(start, served, run, advance)
        run.reporter.note(f"measured {measured}")
        return asdict(measured)

    return run.stored(state / "measured.json", lambda: run.workers.first(make), parse=measured_in)


def _measured_beside_dense(
    start: Start, served: PreTrainedModel, run: Run, advance: Advance, *, roughly: bool = False
) -> Measured:
    """Measure a model; roughly where several measurements and the latency table are combined."""
    return measure(
        dense_in_engine(start, run),
        served,
        start.setting,
        eager=start.dense if start.setting.runs_files else None,
        min_rounds=ROUGH_ROUNDS if roughly else MIN_ROUNDS,
        max_seconds=start.options.measure_seconds * (ROUGH_SHARE if roughly else 1.0),
        progress=lambda rounds, used: advance(used, 1.0),
    )


def shrink_to(pruned: Pruned, levels: Levels) -> PreTrainedModel:
    """Return the current model with its branches at these levels."""
    return shrink_to_sizes(pruned.current, pruned.choices.chosen(levels), pruned.traces_in_order())


def guess_speedup(start: Start, pruned: Pruned, target: Target, run: Run) -> Guess:
    """Guess the largest speedup that keeps a share of the metric; see `bisect_speedup`.

    The metric on the first evaluation split decides, so the result's metric on that split is biased. Evaluate
    on other data for an unbiased figure.
    """

    def make() -> dict[str, Any]:
        stitcher = Stitcher(pruned.current, pruned.traces)
        loss = loss_on(start, pruned.samples.search, stitcher, run)

        def metric_of(sizes: list[Size], speedup: float) -> float:
            small = shrink_to_sizes(pruned.current, sizes, pruned.traces_in_order())
            predictions = predict(start, small, f"recover: {speedup:.2f}x", run)
            return start.main_metric(
                {name: start.task.metrics_of(made) for name, made in predictions.items()}
            )

        guess = bisect_speedup(
            pruned.choices,
            pruned.prior_names,
            target,
            start.main_metric(evaluate_dense(start, run).metrics),
            start.task.greater_is_better,
            loss,
            metric_of,
        )
        return guess._asdict()

    return run.stored(
        run.target_state(target.name) / "recover.json",
        make,
        parse=lambda document: guess_in(document, start.task.greater_is_better),
    )


def save_member(start: Start, candidate: Candidate, folder: Path, run: Run) -> None:
    """Write the checkpoint with its report and its exported file, completely or not at all.

    Only the first process writes.
    """

    def add_report(made: Path) -> None:
        start.task.copy_extras(Path(start.options.model), made)
        whole = {**candidate.report, "bytes_on_disk": size_on_disk(made)}
        if candidate.exported is not None:
            shutil.copytree(candidate.exported, made, dirs_exist_ok=True)
            whole["exported"] = exported_report(candidate.exported)
        write_json(made / "metrics.json", whole)
        write_card(made, whole, start.options.model, start.options.task)

    # Not the tokenizer that read the data: it remembers to truncate to the length of the calibration samples.
    tokenizer = start.task.load_tokenizer(start.options.model)

    def write() -> None:
        require_free(folder)
        save(candidate.model, folder, tokenizer, also=add_report)
        for unneeded in run.unneeded_folders():
            shutil.rmtree(unneeded)

    run.workers.first(write)
