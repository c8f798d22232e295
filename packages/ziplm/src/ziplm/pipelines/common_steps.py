"""Steps whose results all targets of a model share: profile, calibrate, prune.

Each step runs a stage within a run: it reports progress, decides which processes take part, and may store the
result in the run folder.
"""

from collections.abc import Callable, Mapping, Sequence

from latency_profiler import LatencyTable
from transformers import PreTrainedModel

from ziplm.architectures.attention_trace import AttentionTrace, BranchTrace
from ziplm.architectures.base import Branch
from ziplm.errors import NotFinite, UsageError
from ziplm.options.targets import Target
from ziplm.pipelines.stored import ORDERS, fisher_in
from ziplm.pipelines.values import Samples, Start, token_weights
from ziplm.runs.folder import TENSORS, Format, Run
from ziplm.runs.table import read_given_table, read_run_table
from ziplm.stages.calibrate import gather_fisher, gather_statistics
from ziplm.stages.choices import Choices, Priors
from ziplm.stages.costs import branch_costs
from ziplm.stages.fisher import Fisher
from ziplm.stages.levels import best_levels, branch_levels
from ziplm.stages.measure import for_measuring
from ziplm.stages.priors import (
    branch_priors,
    prior_names_for,
)
from ziplm.stages.profile import latency_table, quantized_speedup_in
from ziplm.stages.prune import in_chunks, narrow_attention, prune_branch
from ziplm.stages.traces import StoredTraces, TraceFiles

FISHER = Format(lambda path, fisher: fisher.save(path), Fisher.load)
TABLE = Format(lambda path, table: table.save(path), read_run_table)


def profile(start: Start, run: Run) -> LatencyTable:
    """Return the latency table, given or measured; the first process measures."""

    def make() -> LatencyTable:
        if start.options.latency_table is not None:
            return checked_table(read_given_table(start.options.latency_table), start)
        if start.setting.runs_files:  # the bar only moves when the measurement begins
            run.reporter.note(f"profile: first exporting branches of every size for {start.setting.engine}")
        with run.stage("profile") as advance:
            return measured_table(start, start.options.profile_seconds, advance)

    return run.stored(
        run.latency_file, lambda: run.workers.first(make), TABLE, lambda table: checked_table(table, start)
    )


def measured_table(start: Start, seconds: float, advance: Callable[[float, float], None]) -> LatencyTable:
    """Measure the latency table of the dense model."""
    setting = start.setting
    return latency_table(
        for_measuring(start.dense, setting),
        setting,
        round_to=start.options.round_to,
        narrow=start.options.head_width,
        max_seconds=seconds,
        progress=lambda rounds, used: advance(used, 1.0),
    )


def checked_table(table: LatencyTable, start: Start) -> LatencyTable:
    """Return the table; raise UsageError if it was measured on another model."""
    architecture = start.architecture
    for branch in start.remaining_branches(start.dense):
        largest = max(table.curves[branch.kind].sizes) if branch.kind in table.curves else 0
        dense_groups = architecture.dense_groups(start.dense, branch.kind)
        # A model that was compressed before may be measured itself, or use the table of its dense model.
        if not branch.groups <= largest <= dense_groups:
            raise UsageError(
                f"the latency table was measured on a model with {largest} {branch.kind} groups, "
                f"this one has {dense_groups}",
                "give a table of this model, or none to measure here",
            )
    return table


def make_choices(
    start: Start, current: PreTrainedModel, table: LatencyTable, priors: Mapping[str, Priors] | None = None
) -> Choices:
    """Return the choices of a model: its levels, costs and priors. Without priors, nothing can be solved."""
    widths = start.head_widths(current)
    levels = branch_levels(start.architecture, current, start.options.round_to, widths, table)
    if priors and not start.options.uniform:  # uniform sizes must be levels of all layers
        names = prior_names_for(priors) if start.options.prior == "auto" else [start.options.prior]
        levels = [
            best_levels(own, table, [priors[own.branch.name][name] for name in names])
            if own.branch.name in widths
            else own
            for own in levels
        ]
    costs = branch_costs(start.architecture, current, levels, start.setting)
    dense_branches = start.architecture.branches(start.dense)
    return Choices(
        levels,
        priors or {},
        table,
        costs,
        start.options.uniform,
        dense_branches,
        quantized_speedup_in(table),
    )


def require_reachable(dense_choices: Choices, targets: Sequence[Target]) -> None:
    """Raise UnreachableTarget before the long work if a target is out of reach.

    Recover targets have no speed yet; only their limits are checked.
    """
    for target in targets:
        dense_choices.require_reachable(dense_choices.budgets(target), f"target {target.name}")


def calibrate(start: Start, current: PreTrainedModel, samples: Samples, seed: int, run: Run) -> Fisher | None:
    """Return the fisher of the current model; None if gradients are off. All processes share the batches."""
    if not start.options.gradients:
        return None

    def make() -> Fisher:
        with run.stage("calibrate", "calibrate: gradients") as advance:
            return gather_fisher(
                current,
                start.task,
                samples.calibration,
                batch_size=start.options.calibration_batch_size,
                seed=seed,
                progress=advance,
                workers=run.workers,
                narrowed=narrowed,
            )

    branches, hidden = start.remaining_branches(current), int(current.config.hidden_size)
    widths = start.head_widths(current)
    narrowed = [branch for branch in branches if branch.name in widths]
    fisher: Fisher = run.stored(
        run.fisher_file, make, FISHER, lambda found: fisher_in(found, branches, hidden, samples, narrowed)
    )
    return fisher


def prune(
    start: Start, current: PreTrainedModel, samples: Samples, fisher: Fisher | None, run: Run
) -> StoredTraces:
    """Return a trace for every branch; processes share the batches, then the branches, and then meet.

    Traces and priors do not pass through `Run.stored`: each process writes those of its own branches one by
    one, so that a killed run keeps them and no process holds all of them in memory.
    """

    def is_pruned(branch: Branch) -> bool:
        return files[branch.name].exist() and run.priors_file(branch.name).exists()

    branches = start.remaining_branches(current)
    widths = start.head_widths(current)
    files = {branch.name: _trace_files(run, branch, branch.name in widths) for branch in branches}
    done = run.workers.first(lambda: [is_pruned(branch) for branch in branches])
    missing = [branch for branch, is_done in zip(branches, done, strict=True) if not is_done]
    for chunk in in_chunks(missing, int(start.options.memory_gb * 2**30)):
        _prune_chunk(start, current, samples, fisher, chunk, files, run)
    run.workers.wait()  # until all files exist
    rows = {branch.name: len(start.architecture.weight(current, branch)) for branch in branches}
    return StoredTraces(
        files,
        {branch.name: (rows[branch.name], branch.groups, branch.group_size) for branch in branches},
    )


def _prune_chunk(
    start: Start,
    current: PreTrainedModel,
    samples: Samples,
    fisher: Fisher | None,
    branches: Sequence[Branch],
    files: Mapping[str, TraceFiles],
    run: Run,
) -> None:
    """Gather the statistics of some branches in one pass, prune these branches, and drop the statistics."""
    options, widths = start.options, start.head_widths(current)
    weights = {branch.name: token_weights(fisher, branch, samples) for branch in branches}
    with run.stage("calibrate", "calibrate: inputs") as advance:
        gathered = gather_statistics(
            current,
            start.task,
            samples.calibration,
            branches,
            {name: of_tokens for name, (of_tokens, _) in weights.items()},
            batch_size=options.calibration_batch_size,
            progress=advance,
            workers=run.workers,
        )
    # The widest first, so that the processes get about the same work.
    own = run.workers.share(sorted(branches, key=lambda branch: branch.columns, reverse=True))
    gathered = {branch.name: gathered[branch.name] for branch in own}
    with run.stage("prune") as advance:
        for number, branch in enumerate(own):
            statistics = gathered.pop(branch.name)
            effective = weights[branch.name][1]
            heads = prune_branch(
                current,
                branch,
                statistics,
                fisher,
                effective,
                centred=options.centred,
                method=options.selection,
                update=options.update,
            )
            trace: BranchTrace = heads
            if branch.name in widths and fisher is not None:
                trace = narrow_attention(
                    current, branch, statistics, fisher, effective, heads, centred=options.centred
                )
            known_widths = widths.get(branch.name, ())
            priors = branch_priors(current, branch, statistics, fisher, trace, known_widths)
            if not all(prior.isfinite().all() for prior in priors.values()):
                raise NotFinite(
                    f"the priors of {branch.name} are not finite",
                    "check the weights of the model, and the data",
                )
            if isinstance(trace, AttentionTrace):  # a trace read from its file would prune every width again
                priors[ORDERS] = trace.orders(known_widths)
            TENSORS.write(run.priors_file(branch.name), priors)
            files[branch.name].save(trace)
            advance(number + 1, len(own))


def _trace_files(run: Run, branch: Branch, narrowed: bool) -> TraceFiles:
    """Return the files of a branch's trace."""
    heads = run.trace_file(branch.name)
    if not narrowed:
        return TraceFiles(heads)
    return TraceFiles(heads, *(run.width_file(branch.name, rows) for rows in ("values", "scores")))
