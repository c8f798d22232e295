"""How all members of a run are fine-tuned: with which options, loss and examples.

What the user leaves open is decided here; bench/gradual.py measures these decisions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from token_distill import DistillationLoss

from ziplm.errors import UsageError, one_line
from ziplm.options.options import Options
from ziplm.options.training import FEWEST_CHECKS, TrainingOptions, checks_within
from ziplm.pipelines.samples import kept_apart
from ziplm.pipelines.values import Start
from ziplm.runs.workers import ALONE, Workers
from ziplm.stages.finetune import check_training, distillation_loss, needs_teacher
from ziplm.tasks.base import Features

# Highest learning rate times hidden size, of a member with a divergence of 1 from the dense model, and its
# limits (bench/gradual.py settings).
RATE_OF_WIDTH = 0.25
LEAST_RATE_OF_WIDTH, MOST_RATE_OF_WIDTH = 0.01, 0.2


@dataclass(frozen=True)
class Recipe:
    """How the members of a run are fine-tuned.

    Attributes:
        training: the hyper-parameters, with the batch size of one process. Unless the user gave a learning
            rate, each member gets its own: see `learning_rate_for`.
        loss: the loss.
        examples: examples to train on.
        apart: samples kept apart, which decide which weights are saved; empty to save the last ones.
    """

    training: TrainingOptions
    loss: DistillationLoss
    examples: Sequence[Features]
    apart: Sequence[Features]


def make_recipe(start: Start, workers: Workers = ALONE) -> Recipe:
    """Decide how members are fine-tuned, and raise UsageError before any long work if that cannot be done."""
    options = start.options
    training = training_options(options, workers)
    loss = distillation(start)
    examples, apart = kept_apart(start) if options.keep_best else (start.splits.train, [])
    check_training(start.dense, start.task, examples, training, loss)
    dropout = options.dropout if options.dropout is not None else not needs_teacher(loss)
    return Recipe(replace(training, dropout=dropout), loss, examples, apart)


def distillation(start: Start) -> DistillationLoss:
    """Return the loss of fine-tuning; embedders learn from the cosine between the embeddings."""
    options = start.options
    task = options.task_weight
    if task is None:
        task = start.task.labels_beside_teacher
    try:
        return distillation_loss(
            start.task.head,
            task=task,
            outputs=options.logit_weight,
            token=options.token_weight,
            temperature=options.temperature,
        )
    except ValueError as error:
        raise UsageError(
            f"the loss cannot be made: {one_line(error)}", "check its weights and the temperature"
        ) from error


def learning_rate_for(divergence: float, hidden_size: int) -> float:
    """Return the highest learning rate for a member that diverges so much from the dense model.

    The divergence grows with the square of a distance. Adam moves every weight by about the learning rate in
    each step, so that a member that is twice as far gets twice the rate. At a rate that is too high for a
    close member, it moves away from the dense model first, and a short training ends before it is back.
    """
    distance = math.sqrt(max(divergence, 0.0))  # a tiny divergence may be negative by rounding
    return min(max(RATE_OF_WIDTH * distance, LEAST_RATE_OF_WIDTH), MOST_RATE_OF_WIDTH) / hidden_size


def training_options(options: Options, workers: Workers = ALONE) -> TrainingOptions:
    """Return the hyper-parameters of fine-tuning a member, with the batch size of one process.

    Raises:
        UsageError: if the batch size is not a multiple of the number of processes.
    """
    if options.train_batch_size % workers.world:
        raise UsageError(
            f"train_batch_size {options.train_batch_size} cannot be shared by {workers.world} processes",
            "give a multiple of their number",
        )
    return TrainingOptions(
        learning_rate=options.learning_rate or TrainingOptions.learning_rate,
        epochs=options.epochs_per_step,
        max_steps=options.steps_per_target,
        batch_size=options.train_batch_size // workers.world,
        gradient_accumulation=options.gradient_accumulation,
        warmup_ratio=options.warmup,
        weight_decay=options.weight_decay,
        seed=options.seed,
        dropout=options.dropout is not False,
        precision=options.precision,
        report_to=options.report_to,
    )


def with_checks(recipe: Recipe, processes: int) -> Recipe:
    """Choose how often the samples kept apart are checked, so that this takes a tenth of the time or so."""
    if not recipe.apart:
        return recipe
    checks = checks_within(_examples_seen(recipe, processes), len(recipe.apart))
    # The loss often falls only when the learning rate has fallen, so that patience must be long.
    patience = max(FEWEST_CHECKS, 4 * checks // 5)
    return replace(recipe, training=replace(recipe.training, checkpoints=checks, patience=patience))


def _examples_seen(recipe: Recipe, processes: int) -> float:
    """Return how many examples a training sees, counting repetitions."""
    training = recipe.training
    if training.max_steps > 0:
        return training.max_steps * _examples_per_step(recipe, processes)
    return training.epochs * len(recipe.examples)


def _examples_per_step(recipe: Recipe, processes: int) -> int:
    return recipe.training.batch_size * recipe.training.gradient_accumulation * processes
