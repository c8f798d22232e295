"""Steps that evaluate models on the run's evaluation data, in torch or as their engine runs them."""

from functools import partial

import torch
from transformers import PreTrainedModel

from ziplm.pipelines.stored import predictions_in, require_alike, require_equal
from ziplm.pipelines.values import Start
from ziplm.runs.folder import TENSORS, Run
from ziplm.stages.evaluate import Evaluation, predict_split
from ziplm.tasks.base import Predictions


def predict(start: Start, model: PreTrainedModel, description: str, run: Run) -> dict[str, Predictions]:
    """Return the predictions on every evaluation split; only the first process evaluates."""

    def make() -> dict[str, Predictions]:
        predictions = {}
        for name, features in start.splits.evaluation.items():
            with run.stage("evaluate", f"{description}: {name}") as advance:
                predictions[name] = predict_split(
                    model,
                    start.task,
                    features,
                    reference=start.dense,
                    batch_size=start.options.calibration_batch_size,
                    progress=advance,
                )
        return predictions

    return run.workers.first(make)


def evaluate(start: Start, model: PreTrainedModel, description: str, run: Run) -> Evaluation:
    """Return metrics with intervals on every evaluation split."""
    predictions = predict(start, model, description, run)
    with run.timed("evaluate"):
        return run.workers.first(lambda: Evaluation.of(start.task, predictions))


def evaluate_dense(start: Start, run: Run, beside: Evaluation | None = None) -> Evaluation:
    """Return the dense model's metrics with intervals.

    Its predictions are stored, because every compressed model is compared with them example by example.
    `beside` is the evaluation of such a model, on the same examples.
    """

    def make() -> dict[str, torch.Tensor]:
        made = predict(start, start.dense, "evaluate dense", run)
        return {
            f"{split}/{name}": torch.from_numpy(made[split][name]) for split in made for name in made[split]
        }

    def parse(tensors: dict[str, torch.Tensor]) -> Evaluation:
        predictions = predictions_in(tensors, list(start.splits.evaluation))
        if beside is not None:
            require_alike(beside.predictions, predictions)
        return run.workers.first(lambda: Evaluation.of(start.task, predictions))

    found: Evaluation = run.stored(run.dense_predictions_file, make, TENSORS, parse)
    run.stored(run.dense_metrics_file, lambda: found.metrics, parse=partial(require_equal, found.metrics))
    return found
