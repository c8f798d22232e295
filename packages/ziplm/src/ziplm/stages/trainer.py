"""The Trainer of transformers with a distillation loss and a reproducible order of the data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from token_distill import DistillationLoss, Outputs, Teacher
from torch import nn
from torch.utils.data import Sampler
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_pt_utils import DistributedLengthGroupedSampler

from ziplm.architectures.registry import architecture_of
from ziplm.errors import NotFinite, UsageError, one_line
from ziplm.options.training import CHECKED_AT_ONCE, Check
from ziplm.stages.race import batch_size_on
from ziplm.stages.training_folder import mark_whole, wait_for_everyone
from ziplm.tasks.base import Features, Progress, Task
from ziplm.tasks.heads import Batch, Divergence, inputs_of, is_clearly_lower, mean_divergence

PARTS = "eval_parts"  # of an entry of the Trainer's log: total loss and samples of each batch
PORTION = 1000  # examples read at once, which is faster where examples are tokenised when they are read


class DistillationTrainer(Trainer):
    """A Trainer with a distillation loss, and an order of the data that depends only on seed and epoch."""

    def __init__(
        self,
        model: PreTrainedModel,
        task: Task,
        features: Sequence[Features],
        arguments: TrainingArguments,
        teacher: PreTrainedModel | None,
        loss: DistillationLoss | None,
        progress: Progress | None,
        apart: Sequence[Features] = (),
        patience: int = 0,
        checked: Callable[[Check], None] | None = None,
    ) -> None:
        self.task, self.apart = task, apart
        # Trainer's own sampler draws from torch's global generator, so that a resumed epoch would differ.
        self.order = DistributedLengthGroupedSampler(
            arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size,
            lengths=[
                len(example["input_ids"])
                for start in range(0, len(features), PORTION)
                for example in features[start : start + PORTION]
            ],
            num_replicas=1,  # accelerate distributes the batches
            rank=0,
            seed=arguments.seed,
        )
        super().__init__(
            model=model,
            args=arguments,
            data_collator=task.collate,
            train_dataset=features,
            eval_dataset=apart or None,
            callbacks=[_Bookkeeping(self.order, progress, patience, checked)],
        )
        self.remove_callback(PrinterCallback)
        self.teacher = None if teacher is None else Teacher(teacher, device=arguments.device)
        # Use the mean loss of each forward pass. Trainer would divide by its own count of labels instead,
        # which includes labels that GPT2 never predicts, and would do so for classifiers as well.
        self.model_accepts_loss_kwargs = False
        self.loss = loss
        if loss is not None:
            layers = {branch.layer for branch in architecture_of(model).branches(model) if branch.groups}
            self.layers = sorted(layers)
            if loss.token and not layers and (loss.task or loss.logit or loss.cosine):
                self.loss = replace(loss, token=0.0)  # no layer is left to compare
        self.loss_of_checks = _of_outputs(self.loss)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the loss of one batch, a scalar; raise NotFinite if it is not finite."""
        loss, outputs = self._computed(self.loss, model, inputs, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _computed(
        self,
        by: DistillationLoss | None,
        model: nn.Module,
        inputs: Batch,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> tuple[torch.Tensor, Any]:
        """Return the loss of one batch and the outputs of the model; without `by`, the model's own loss."""
        if by is None:
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        else:
            loss, outputs = self._distilled(by, model, inputs)
        if not torch.isfinite(loss):
            raise diverged(f"the loss became {loss.item()}", self.state.global_step + 1)
        return loss, outputs

    def _distilled(
        self, loss: DistillationLoss, model: nn.Module, inputs: Batch
    ) -> tuple[torch.Tensor, Outputs]:
        unlabelled = inputs_of(inputs)
        hidden = loss.token > 0 or loss.cosine > 0
        made = model(**(inputs if loss.task else unlabelled), output_hidden_states=hidden)
        outputs = Outputs.of(made)
        taught = None
        if self.teacher is not None and (loss.logit or hidden):
            taught = self.teacher(**unlabelled, output_hidden_states=hidden)
        try:
            parts = loss(
                outputs,
                taught,
                task_loss=getattr(made, "loss", None),
                mask=inputs.get("attention_mask"),
                layers=self.layers,
            )
        except ValueError as error:
            tensors = [value for value in made.values() if isinstance(value, torch.Tensor)]
            if not all(value.isfinite().all() for value in tensors):
                raise diverged(one_line(error), self.state.global_step + 1) from error
            raise UsageError(
                f"the loss cannot be computed: {one_line(error)}",
                "give a model, a teacher and weights that go together",
            ) from error
        return parts.total, outputs

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Check the model on the samples kept apart: the loss and, if it is the lowest so far, the metric.

        The state of the Trainer remembers the lowest loss and its step, so that a resumed training knows it.
        """
        parts = self._losses_apart()
        loss = mean_divergence(parts)
        found = {"eval_loss": loss}
        if self.state.best_metric is None or loss < self.state.best_metric:
            self.state.best_metric, self.state.best_global_step = loss, self.state.global_step
            metric = self.task.judged(self._plain_model, self.apart) if self.is_world_process_zero() else None
            if metric is not None:
                found["eval_metric"] = metric
        self.log(found)
        entry: dict[str, Any] = self.state.log_history[-1]
        entry[PARTS] = parts
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        return found

    @torch.no_grad()
    def _losses_apart(self) -> list[Divergence]:
        """Return the loss of the outputs on each batch of samples kept apart; processes share the batches."""
        size = batch_size_on(self.apart, CHECKED_AT_ONCE)
        batches = enumerate(self.task.batches(self.apart, size))
        model = self._plain_model
        model.eval()
        count = math.ceil(len(self.apart) / size)
        sums = torch.zeros(count, 2, dtype=torch.float64, device=self.args.device)  # losses, and samples
        for number, (chosen, batch) in islice(batches, self.args.process_index, None, self.args.world_size):
            with self.compute_loss_context_manager():
                loss, _ = self._computed(self.loss_of_checks, model, self._prepare_inputs(batch))
            sums[number] = sums.new_tensor([len(chosen) * float(loss), len(chosen)])
        model.train()
        if self.args.world_size > 1:
            dist.all_reduce(sums)
        return [Divergence(total, int(samples)) for total, samples in sums.tolist()]

    @property
    def _plain_model(self) -> PreTrainedModel:
        """The model itself, not as it is wrapped for several processes."""
        assert isinstance(self.model, PreTrainedModel)
        return self.model

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return self.order


class _Bookkeeping(TrainerCallback):
    """Marks complete checkpoints, sets the epoch of the data order, reports progress, and ends early."""

    def __init__(
        self,
        order: DistributedLengthGroupedSampler,
        progress: Progress | None,
        patience: int,
        checked: Callable[[Check], None] | None,
    ) -> None:
        self.order, self.progress = order, progress
        self.patience, self.checked = patience, checked

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # With several processes, accelerate does not set the epoch of a resumed sampler.
        self.order.set_epoch(int(state.epoch or 0))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.progress is not None and state.is_world_process_zero:
            self.progress(state.global_step, state.max_steps)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        control.should_training_stop |= is_over(state, self.patience)
        if self.checked is not None and state.is_world_process_zero:
            self.checked(checks_of(state)[-1])

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        wait_for_everyone()  # each process writes the state of its own generators
        if state.is_world_process_zero:
            mark_whole(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}", state.best_global_step)


def _of_outputs(loss: DistillationLoss | None) -> DistillationLoss | None:
    """Return the part of a loss that compares outputs, by which states of a training are judged.

    Hidden states are a means to an end, and their distance is several times as large as the other parts, so
    that it would decide alone.
    """
    if loss is None or not (loss.task or loss.logit or loss.cosine):
        return loss
    return replace(loss, token=0.0)


def checks_of(state: TrainerState) -> tuple[Check, ...]:
    """Return all checks on samples kept apart."""
    return tuple(
        Check(int(entry["step"]), entry["eval_loss"], entry.get("eval_metric"))
        for entry in state.log_history
        if "eval_loss" in entry
    )


def is_over(state: TrainerState, patience: int) -> bool:
    """Return whether all steps are done, or the loss has clearly not fallen for a while.

    That is the case if the lowest loss is as many checks ago as `patience` says, and the last one is clearly
    higher. The check before the training does not count: at a high learning rate, the loss rises first, and
    falls below its start only when the rate has fallen.
    """
    trained = [check for check in checks_of(state) if check.step]
    lowest = min(trained, key=lambda check: check.loss, default=None)
    if lowest is None or not 0 < patience < len(trained) - trained.index(lowest):
        return state.global_step >= state.max_steps
    return state.global_step >= state.max_steps or _is_clearly_higher(state, trained[-1].step, lowest.step)


def kept_step(state: TrainerState) -> int:
    """Return the step whose weights are kept after checks on samples kept apart; 0 for those before.

    It is the last step if all are done, unless the lowest loss is clearly lower: by more than two standard
    errors. A few samples may make most of the loss. Of a gradual run of MiniLM on SST-2, a state from the
    middle of the training had half the loss of the last one on 256 samples, and a divergence that was a half
    larger on 1000 others, since its learning rate had not yet fallen (bench/gradual.py modes).
    """
    checked = {check.step for check in checks_of(state)}
    lowest, last = state.best_global_step or 0, state.global_step
    all_done = last >= state.max_steps and last in checked
    return last if all_done and not _is_clearly_higher(state, last, lowest) else lowest


def _is_clearly_higher(state: TrainerState, step: int, other: int) -> bool:
    """Return whether the loss on samples kept apart is higher at a step than at another, beyond chance."""
    log: list[dict[str, Any]] = state.log_history
    parts = {
        int(entry["step"]): [Divergence(*part) for part in entry[PARTS]] for entry in log if PARTS in entry
    }
    return is_clearly_lower(parts.get(other, []), parts.get(step, []))


def diverged(what: str, step: int) -> NotFinite:
    """Return the error for a training that diverged."""
    return NotFinite(
        f"{what} at step {step}",
        "try a smaller learning rate, or precision float32",
    )
