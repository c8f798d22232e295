"""Fine-tuning, with or without a teacher: the Trainer of transformers, made safe to kill and to repeat."""

import inspect
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
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
from transformers.integrations.integration_utils import get_reporting_integration_callbacks
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_pt_utils import DistributedLengthGroupedSampler

from ziplm.adapters import adapter_for
from ziplm.errors import UsageError, ZipLMError, one_line
from ziplm.heads import LABELS, Batch, inputs_of
from ziplm.tasks.base import Features, Progress, Task
from ziplm.training import TrainingOptions, TrainingSummary
from ziplm.training_folder import claim, identity, last_whole, mark_whole, state_of, wait_for_everyone

_PORTION = 1000  # examples read at once: those that are tokenised when they are read are faster so
_LOGS = 50  # losses that are kept of a training, about


def finetune(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    options: TrainingOptions,
    *,
    teacher: PreTrainedModel | None = None,
    loss: DistillationLoss | None = None,
    folder: str | Path,
    progress: Progress | None = None,
) -> TrainingSummary:
    """Train a model in place, and leave it in eval mode.

    Killed at any point and called again with the same arguments and the weights from before, it goes on from
    the last whole checkpoint in `folder` and ends with the same weights. Once it has ended, it only loads
    them; the folder is the caller's to delete. It may be called by every process of a torchrun.

    Args:
        model: dense or shrunk, on the device to train on. It gets parameters of its own first: no other model
            that shared them changes.
        task: makes the batches.
        features: tokenised examples with labels, in the same order in every call.
        options: see there.
        teacher: a model with the same number of layers; never changed.
        loss: weights of task, logit and token loss; the last two need a teacher. None: the task loss alone.
        folder: for checkpoints, made if need be.
        progress: called with the steps done and the steps to do, in the first process only.

    Raises:
        UsageError: there are no examples, the folder belongs to another training, or model, teacher and loss
            do not go together.
        ZipLMError: the loss became nan or infinite.
    """
    folder = Path(folder)
    if teacher is None and loss is not None and (loss.logit or loss.token):
        raise UsageError("there is a loss between models and no teacher", "give one, or only a task loss")
    if teacher is not None and loss is None:
        raise UsageError("there is a teacher and no loss", "give both to distill, or neither")
    if teacher is model:
        raise UsageError("the teacher is the model that is trained", "give a copy")
    check_training(model, task, features, options, loss)
    arguments = _arguments(model, len(features), options, folder)
    claim(folder, identity(model, features, options, loss), first=arguments.process_index == 0)
    last = last_whole(folder, first=arguments.process_index == 0)
    _give_own_parameters(model)
    started = time.perf_counter()
    if last is not None and (state := state_of(last)).global_step >= state.max_steps:
        load_model(model, last / "model.safetensors", device=str(model.device))
    else:
        with _settings_kept(model, options.dropout):
            trainer = _Trainer(model, task, features, arguments, teacher, loss, progress)
            # Checkpoints hold weights as safetensors, but Trainer keeps its optimizer's state in torch's own
            # format; it reads that with `weights_only=True`, so nothing is unpickled.
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
        # In mixed precision, accelerate replaces `forward`.
        trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        state = trainer.state
    model.zero_grad(set_to_none=True)
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise _diverged("the weights became nan or infinite", state.global_step)
    epochs = float(state.epoch or 0)
    return TrainingSummary(
        steps=state.global_step,
        epochs=epochs,
        examples=round(epochs * len(features)),
        seconds=time.perf_counter() - started,
        losses=tuple((int(entry["step"]), entry["loss"]) for entry in state.log_history if "loss" in entry),
    )


class _Trainer(Trainer):
    """Trainer with a distillation loss, and an order of the data that depends on seed and epoch only."""

    def __init__(
        self,
        model: PreTrainedModel,
        task: Task,
        features: Sequence[Features],
        arguments: TrainingArguments,
        teacher: PreTrainedModel | None,
        loss: DistillationLoss | None,
        progress: Progress | None,
    ) -> None:
        # Trainer's own sampler draws from torch's global generator, so a resumed epoch would be another one.
        self.order = DistributedLengthGroupedSampler(
            arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size,
            lengths=[
                len(example["input_ids"])
                for start in range(0, len(features), _PORTION)
                for example in features[start : start + _PORTION]
            ],
            num_replicas=1,  # accelerate shares the batches out
            rank=0,
            seed=arguments.seed,
        )
        super().__init__(
            model=model,
            args=arguments,
            data_collator=task.collate,
            train_dataset=features,
            callbacks=[_Bookkeeping(self.order, progress)],
        )
        self.remove_callback(PrinterCallback)
        self.teacher = None if teacher is None else Teacher(teacher, device=arguments.device)
        # Each forward pass counts by its mean. Trainer would rather divide by the number of all labels, but
        # counts those of GPT2 that predict nothing, too, and takes classifiers to divide by it as well.
        self.model_accepts_loss_kwargs = False
        self.loss = loss
        if loss is not None:
            layers = {module.layer for module in adapter_for(model).modules(model) if module.groups}
            self.layers = sorted(layers)
            if loss.token and not layers and (loss.task or loss.logit):
                self.loss = replace(loss, token=0.0)  # no layer is left to compare

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """A scalar for one batch; refuses nan."""
        if self.loss is None:
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        else:
            loss, outputs = self._distilled(self.loss, model, inputs)
        if not torch.isfinite(loss):
            raise _diverged(f"the loss became {loss.item()}", self.state.global_step + 1)
        return (loss, outputs) if return_outputs else loss

    def _distilled(
        self, loss: DistillationLoss, model: nn.Module, inputs: Batch
    ) -> tuple[torch.Tensor, Outputs]:
        unlabelled = inputs_of(inputs)
        hidden = loss.token > 0
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
                raise _diverged(one_line(error), self.state.global_step + 1) from error
            raise UsageError(
                f"the loss cannot be computed: {one_line(error)}",
                "give a model, a teacher and weights that go together",
            ) from error
        return parts.total, outputs

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return self.order


class _Bookkeeping(TrainerCallback):
    """Marks whole checkpoints, sets the epoch of the order of the data, and tells about progress."""

    def __init__(self, order: DistributedLengthGroupedSampler, progress: Progress | None) -> None:
        self.order = order
        self.progress = progress

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # With several processes, accelerate does not reach the sampler of an epoch that is resumed.
        self.order.set_epoch(int(state.epoch or 0))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.progress is not None and state.is_world_process_zero:
            self.progress(state.global_step, state.max_steps)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        wait_for_everyone()  # each process writes the state of its own generators
        if state.is_world_process_zero:
            mark_whole(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}")


def check_training(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    options: TrainingOptions,
    loss: DistillationLoss | None,
) -> None:
    """Raise UsageError if a training could not even begin."""
    if len(features) == 0:
        raise UsageError("there are no examples to train on", "check the training data")
    if loss is None or loss.task:
        taken = [name for name in LABELS if name in inspect.signature(model.forward).parameters]
        if not taken:
            raise UsageError(
                f"{type(model).__name__} has no loss of its own", "give a teacher, and a loss with task=0"
            )
        if not set(taken) & set(task.collate(features[:1])):
            raise UsageError("the examples have no labels", "check the training data, or distill with task=0")
    if options.precision != "float32" and model.device.type == "cpu":
        raise UsageError(
            f"precision {options.precision} on a CPU is slow at best",
            "use float32, or move the model to a GPU",
        )
    try:
        get_reporting_integration_callbacks(list(options.report_to))
    except ValueError as error:
        raise UsageError(f"report_to is unknown: {one_line(error)}", "leave it out, or mend it") from error


def _arguments(
    model: PreTrainedModel, examples: int, options: TrainingOptions, folder: Path
) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(folder),
        learning_rate=options.learning_rate,
        num_train_epochs=options.epochs,
        max_steps=options.max_steps,
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.gradient_accumulation,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        warmup_steps=options.warmup_ratio,  # below 1, a part of all steps
        lr_scheduler_type=options.schedule,
        seed=options.seed,
        bf16=options.precision == "bf16",
        fp16=options.precision == "fp16",
        use_cpu=model.device.type == "cpu",
        save_strategy="steps",
        save_total_limit=2,  # one of them is whole while the other is written
        logging_strategy="steps",
        report_to=list(options.report_to) or "none",
        remove_unused_columns=False,
        dataloader_pin_memory=model.device.type != "cpu",
        disable_tqdm=True,
    )
    # Several GPUs are for torchrun: without it, Trainer would split each batch among threads, while the
    # teacher sees the whole of it. (Reading `n_gpu` also makes the processes find each other.)
    arguments._n_gpu = min(arguments.n_gpu, 1)
    passes = math.ceil(examples / (options.batch_size * arguments.world_size))
    by_epochs = math.ceil(options.epochs * math.ceil(passes / options.gradient_accumulation))
    steps = options.max_steps if options.max_steps > 0 else by_epochs
    # Trainer takes fractions of all steps, too, but then warns of a change when it goes on.
    arguments.save_steps = math.ceil(steps / options.checkpoints)
    arguments.logging_steps = math.ceil(steps / _LOGS)
    return arguments


@contextmanager
def _settings_kept(model: PreTrainedModel, dropout: bool) -> Iterator[None]:
    """Eval mode, dropout and config as they were, after a training that changed them."""
    rates = {module: module.p for module in model.modules() if isinstance(module, nn.Dropout)}
    # Trainer switches the cache off; a classifier that sees labels notes what kind of problem it has.
    settings = {name: getattr(model.config, name, None) for name in ("use_cache", "problem_type")}
    try:
        if not dropout:
            for module in rates:
                module.p = 0.0
        yield
    finally:
        for module, rate in rates.items():
            module.p = rate
        for name, value in settings.items():
            if hasattr(model.config, name):
                setattr(model.config, name, value)
        model.eval()


def _give_own_parameters(model: PreTrainedModel) -> None:
    """Replace each parameter by a copy; those that are tied to each other stay so."""
    copies: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if parameter not in copies:
                    own = parameter.detach().clone(memory_format=torch.contiguous_format)
                    copies[parameter] = nn.Parameter(own, requires_grad=parameter.requires_grad)
                module._parameters[name] = copies[parameter]


def _diverged(what: str, step: int) -> ZipLMError:
    return ZipLMError(
        f"{what} at step {step}",
        "try a smaller learning_rate, a longer warmup_ratio, or precision float32",
    )
