"""The cost model: what each stage of a run consists of, in the units of a probe.

It counts the tokens of samples, the columns that are pruned, the exports for an engine and the rounds of
measurements. A model that is s times as fast as the dense model is taken to need 1/s of its time everywhere.
What int8 makes faster is not smaller: in torch, such a model takes longer by the speedup of int8 alone.
"""

from collections.abc import Sequence
from functools import cached_property

from ziplm.options.targets import Target
from ziplm.options.training import CHECKED_AT_ONCE, checks_within
from ziplm.pipelines.recover import STEPS
from ziplm.pipelines.samples import usual_lengths
from ziplm.pipelines.units import UnitTimes, padded, padded_tokens
from ziplm.pipelines.values import Start
from ziplm.runs.folder import Run
from ziplm.stages.choices import SECONDS, Choices
from ziplm.stages.dense_outputs import MOST_BYTES
from ziplm.stages.evaluate import BATCH_SIZE
from ziplm.stages.fit import ROUGH_ROUNDS, ROUGH_SHARE
from ziplm.stages.measure import MIN_ROUNDS
from ziplm.stages.prune import in_chunks
from ziplm.stages.race import batch_size_on
from ziplm.stages.refit import MOST_SAMPLES, TRIAL_SAMPLES
from ziplm.tasks.base import Features
from ziplm.tasks.language_model import LanguageModel

# What the probe does not measure.
SMALL_PASSES = 3  # forward passes of the small model in a refit
FIT_ROUNDS = 2.4  # there are two or three, and rarely one
ROUNDS_OVER_LEAST = 2.0  # rounds of a measurement over the least number, unless its time limit comes first
WARM_UP, WARM_UP_SECONDS = 4, 1.0  # rounds before a measurement, or two of slow models
RACED = 0.4  # share of the samples on which the search evaluates a candidate, on average
TRIED = 0.7  # share of the evaluations after which a search usually ends, since nothing improves
UNKNOWN_SPEEDUP = 2.0  # of a target that states no speed
ATTEMPTS = 2  # finished models of a recover target, usually
COUNTED = 2048  # training examples whose tokens are counted; all would have to be tokenised, in minutes
PRIORS = 3  # solutions that are tried even without a search


def _prunings(widths: Sequence[int], exact: bool) -> float:
    """Return the work of pruning a branch with these widths of heads, in units of pruning it at the first.

    Each smaller width is pruned for its priors, and once more for the exact prior, if there is one.
    """
    return 1 + (1 + exact) * sum((width / widths[0]) ** 2 for width in widths[1:])


class CostModel:
    """Seconds of the stages, from the unit times of a probe.

    Args:
        start: what the run starts from.
        run: the run, which may hold results already.
        dense_choices: choices of the dense model.
        times: the unit times.
    """

    def __init__(self, start: Start, run: Run, dense_choices: Choices, times: UnitTimes) -> None:
        self._start, self._run, self._choices, self._times = start, run, dense_choices, times
        self._options = start.options

    def speedup(self, target: Target) -> float:
        """Return the speedup that a target asks for."""
        seconds = self._choices.budgets(target).get(SECONDS, 0.0)
        return self._choices.dense_seconds / seconds if seconds else UNKNOWN_SPEEDUP

    def pruning(self, run: Run, current: float) -> dict[str, float]:
        """Estimate calibration and pruning of a current model of that speedup."""
        times, samples, current = self._times, self._start.samples, self._in_torch(current)
        branches = [
            branch
            for branch in self._start.remaining_branches(self._start.dense)
            if not run.trace_file(branch.name).exists()
        ]
        if not branches:
            return {"calibrate": 0.0, "prune": 0.0}
        passes = len(in_chunks(branches, int(self._options.memory_gb * 2**30)))
        inputs = times.statistics + (passes - 1) * times.forward
        fisher = 0.0 if run.fisher_file.exists() or not self._options.gradients else times.fisher
        rows = self._start.dense.config.hidden_size
        widths = self._start.head_widths(self._start.dense)
        exact = self._options.gradients and self._start.task.head.pooled
        pruned = [
            (branch.columns / current) ** 2 * _prunings(widths.get(branch.name, ()), exact)
            for branch in branches
        ]
        prune = times.pruning * rows * sum(pruned)
        unseen = times.fisher * self._tokens(samples.not_calibrated) / current
        prune += unseen if widths else 0.0  # the scores of narrower heads
        if exact:
            prune += 2 * unseen
        return {"calibrate": (fisher + inputs) * self._tokens(samples.calibration) / current, "prune": prune}

    def target(self, target: Target) -> dict[str, float]:
        """Estimate the stages of one target, in the order of the run."""
        speedup, options = self.speedup(target), self._options
        stages = {
            "search": self._search(speedup),
            "fit": FIT_ROUNDS * (self._times.export + self._measurement(speedup, ROUGH_ROUNDS, ROUGH_SHARE)),
            "refit": self._refit(speedup),
        }
        if options.trains and options.train_minutes is not None:
            stages["finetune"] = 60 * options.train_minutes
        elif options.trains:
            stages["finetune"] = self._finetuning(speedup, options.epochs_per_step, options.steps_per_target)
        if self._start.setting.runs_files:
            stages["export"] = self._times.export
        stages |= {"measure": self._measurement(speedup), "evaluate": self._evaluation_of_member(speedup)}
        if target.kind == "recover":
            stages = {stage: ATTEMPTS * seconds for stage, seconds in stages.items()}
            stages["evaluate"] += STEPS * self._evaluation(self._times.evaluation / self._in_torch(speedup))
        return stages

    def dense_export(self) -> float:
        """Estimate the export of the dense model, which the first fit needs."""
        exported = (self._run.folder / "state" / "engine" / "dense").exists()
        return 0.0 if exported or self._options.latency_table is not None else self._times.export

    def dense_outputs(self) -> float:
        """Estimate the outputs of the dense model that searches compare with, where they are remembered."""
        samples = self._start.samples
        return (
            self._times.forward * sum(map(self._tokens, (samples.search, samples.judging))) * self._remembers
        )

    def dense_evaluation(self) -> float:
        """Estimate the evaluation of the dense model, which always runs in torch."""
        return self._evaluation(self._times.evaluation)

    def dense_training(self) -> dict[str, float]:
        """Estimate the fine-tuning of the dense model, if there is one to do."""
        options = self._options
        if not options.trains_dense or (self._run.dense_folder / "config.json").exists():
            return {}
        return {"finetune": self._finetuning(1.0, options.dense_epochs, options.dense_steps, teacher=0.0)}

    def _in_torch(self, speedup: float) -> float:
        """Return how much faster than the dense model a member is in torch, where nothing is quantised."""
        return max(1.0, speedup / self._choices.quantized_speedup)

    def _search(self, speedup: float) -> float:
        times, samples, faster = self._times, self._start.samples, self._in_torch(speedup)
        # Layers before the first change are not run again, which makes up for putting a candidate together.
        candidate = times.forward / faster + times.divergence
        searches = self._options.search != "prior" and faster > 1  # int8 alone may be enough
        searched = max(0, self._options.evaluations - PRIORS) if searches else 0
        share, tried = (RACED, TRIED) if self._options.search == "direct" else (1.0, 1.0)
        raced = PRIORS - 1 + tried * searched
        compared = 0.0 if self._remembers else times.forward  # the outputs to compare with
        on_search = (1 + share * raced) * candidate + compared
        on_judging = 2 * candidate + compared
        return on_search * self._tokens(samples.search) + on_judging * self._tokens(samples.judging)

    def _measurement(self, speedup: float, least: int = MIN_ROUNDS, share: float = 1.0) -> float:
        """Estimate a measurement beside the dense model; in an engine, eager torch is measured as well.

        Args:
            speedup: the speedup of the model.
            least: smallest number of rounds.
            share: share of the time limit.
        """
        if self._options.latency_table is not None:
            return 0.0
        setting, times = self._start.setting, self._times
        dense = self._choices.dense_seconds
        models = [dense, dense / speedup]
        if setting.runs_files:  # the probe has measured the dense model as it is served, perhaps quantised
            models.append(dense * times.evaluation / (times.served * self._choices.quantized_speedup))
        if setting.clock == "wall":  # quick models are repeated until they take as long as the slowest one
            models = [max(models)] * len(models)
        one_round = sum(models) * len(setting.lengths)
        limit = share * self._options.measure_seconds / max(1.0, times.waiting)
        warm_up = min(WARM_UP * one_round, max(2 * one_round, WARM_UP_SECONDS))
        return min(ROUNDS_OVER_LEAST * least * one_round, limit) + warm_up

    def _refit(self, speedup: float) -> float:
        faster = self._in_torch(speedup)
        if not self._start.refits or faster == 1:
            return 0.0
        times, samples = self._times, self._start.samples
        sums = times.statistics - times.forward
        fitting = times.forward + (SMALL_PASSES * times.forward + sums) / faster
        count = len(samples.calibration)
        whole = min(1.0, MOST_SAMPLES / count) * fitting * self._tokens(samples.calibration)
        whole += sum(self._comparison(part, faster, models=2) for part in (samples.search, samples.judging))
        if count <= 2 * TRIAL_SAMPLES:
            return whole
        trial = TRIAL_SAMPLES / count * fitting * self._tokens(samples.calibration)
        trial += self._comparison(samples.judging, faster, models=2)
        # So far, refits have never helped models that read one token, and always the others.
        return trial if self._start.task.head.reads_one_token else trial + whole

    def _tokens(self, samples: Sequence[Features]) -> int:
        return padded_tokens(samples, self._options.calibration_batch_size)

    @property
    def _remembers(self) -> bool:
        """Whether the dense model's outputs on search and judging samples are computed once."""
        if not isinstance(self._start.task.head, LanguageModel):
            return True
        hidden = self._start.dense.config.hidden_size
        return 4 * hidden * self._tokens(self._start.samples.not_calibrated) <= MOST_BYTES

    def _comparison(self, samples: Sequence[Features], faster: float, models: int = 1) -> float:
        """Estimate the comparison of models with the dense one in torch."""
        known = self._remembers and batch_size_on(samples, self._options.calibration_batch_size) == BATCH_SIZE
        each = self._times.forward * (models / faster + (not known)) + models * self._times.divergence
        return each * padded_tokens(samples, BATCH_SIZE)

    def _evaluation(self, seconds: float) -> float:
        """Estimate the evaluation of one model that takes so long for each token."""
        return sum(map(self._tokens, self._start.splits.evaluation.values())) * seconds

    def _evaluation_of_member(self, speedup: float) -> float:
        """Estimate the evaluation of a member, and its comparison with the dense model for the report."""
        times, faster = self._times, self._in_torch(speedup)
        served = in_torch = times.evaluation / faster
        if self._start.setting.runs_files:
            served = times.served * self._choices.quantized_speedup / speedup
        own = self._evaluation(served)
        if self._start.setting.quantize is not None:  # what int8 costs
            own += self._evaluation(in_torch)
        return own + self._comparison(self._start.samples.judging, faster)

    @cached_property
    def _training_tokens(self) -> float:
        """Tokens of an epoch of training, estimated from random examples if there are many."""
        train = self._start.splits.train
        lengths = usual_lengths(train, COUNTED, self._options.seed)
        return padded(lengths, self._options.train_batch_size) * len(train) / len(lengths)

    def _finetuning(self, speedup: float, epochs: float, steps: int, teacher: float = 1.0) -> float:
        batch, train = self._options.train_batch_size, self._start.splits.train
        batch *= self._options.gradient_accumulation
        if steps > 0:
            epochs = steps * batch / len(train)
        parameters = sum(parameter.numel() for parameter in self._start.dense.parameters())
        each = self._times.training / self._in_torch(speedup) + teacher * self._times.forward
        updates = epochs * len(train) / batch
        training = epochs * self._training_tokens * each + updates * parameters * self._times.optimizer
        if not (teacher and self._options.keep_best):
            return training
        apart = self._start.samples.judging
        checks = 1 + checks_within(epochs * len(train), len(apart))  # one before the training
        passes = self._times.forward * (1 + 1 / self._in_torch(speedup))
        return training + checks * padded_tokens(apart, CHECKED_AT_ONCE) * passes
