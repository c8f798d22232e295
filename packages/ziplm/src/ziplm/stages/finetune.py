"""Fine-tune a model, with or without a teacher, so that a killed training resumes to the same weights."""

import copy
import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_model
from token_distill import DistillationLoss
from torch import nn
from transformers import PreTrainedModel, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import get_reporting_integration_callbacks

from ziplm.errors import UsageError, one_line
from ziplm.files import failed_writes_as_os_errors
from ziplm.options.training import Check, TrainingOptions, TrainingSummary
from ziplm.stages.random_state import kept_random_state
from ziplm.stages.trainer import DistillationTrainer, checks_of, diverged, is_over, kept_step
from ziplm.stages.training_folder import claim, identity, last_whole, state_of, weights_of
from ziplm.tasks.base import Features, Progress, Task
from ziplm.tasks.heads import LABELS, Head

_LOGS = 50  # approximate number of losses in the summary of a training


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
    apart: Sequence[Features] = (),
    checked: Callable[[Check], None] | None = None,
) -> TrainingSummary:
    """Train a model in place, and leave it in eval mode.

    With samples kept apart, the model ends with the last weights, unless those of an earlier check, or those
    from before the training, have a loss on them that is clearly lower: by more than two standard errors. The
    samples are checked before the training and at every checkpoint.

    If a call is killed, repeating it with the same arguments and initial weights resumes from the last
    complete checkpoint in `folder` and ends with the same weights. If the training is finished, the weights
    are only loaded. The caller deletes the folder. With torchrun, all processes make the call together.

    Args:
        model: dense or shrunk model, on the device to train on. It gets its own copies of all parameters
            first, so that models which shared them do not change.
        task: makes the batches.
        features: tokenised examples with labels, in the same order in every call.
        options: hyper-parameters.
        teacher: a model with the same number of layers; it is not changed. None for no teacher.
        loss: weights of task, logit, token and cosine loss; all but the first need a teacher. None for the
            task loss alone.
        folder: folder for checkpoints, created if necessary.
        progress: called with the number of steps done and the total, in the first process only.
        apart: examples like those of `features`, but not among them; empty to keep the last weights.
        checked: called after each check, in the first process only.

    Raises:
        UsageError: if there are no examples, if the folder belongs to another training, or if model, teacher
            and loss do not fit each other.
        BadRun: if the folder holds something else, or a checkpoint in it is damaged.
        NotFinite: if the loss or a weight becomes nan or infinite.
    """
    folder = Path(folder)
    check_teacher(model, teacher, loss)
    check_training(model, task, features, options, loss)
    arguments = _arguments(model, len(features), options, folder, checks=bool(apart))
    is_first_process = arguments.process_index == 0
    claim(folder, identity(model, features, options, loss, apart), is_first_process)
    last = last_whole(folder, is_first_process)
    _give_own_parameters(model)
    before = copy.deepcopy(model.state_dict()) if apart else {}
    started = time.perf_counter()
    state = None if last is None else state_of(last)
    resumed_at = None if state is None else state.global_step
    if state is None or not is_over(state, options.patience):
        arguments.eval_on_start = bool(apart) and last is None
        with _settings_kept(model, options.dropout), kept_random_state(), failed_writes_as_os_errors():
            trainer = DistillationTrainer(
                model, task, features, arguments, teacher, loss, progress, apart, options.patience, checked
            )
            state = _trained(trainer, last)
    best_step = kept_step(state) if apart else state.global_step
    if best_step == 0:
        model.load_state_dict(before)
    elif best_step != state.global_step or resumed_at == state.global_step:  # not what the model has now
        load_model(model, weights_of(folder, best_step), device=str(model.device))
    model.zero_grad(set_to_none=True)
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise diverged("the weights became nan or infinite", state.global_step)
    epochs = float(state.epoch or 0)
    return TrainingSummary(
        steps=state.global_step,
        epochs=epochs,
        examples=_examples_seen(state.global_step, len(features), options, arguments.world_size),
        seconds=time.perf_counter() - started,
        losses=tuple((int(entry["step"]), entry["loss"]) for entry in state.log_history if "loss" in entry),
        checks=checks_of(state),
        best_step=best_step,
    )


def distillation_loss(
    head: Head, *, task: float, outputs: float, token: float, temperature: float = 1.0
) -> DistillationLoss:
    """Return the loss for models with this head: outputs are logits, or embeddings compared by cosine.

    Args:
        head: kind of the models' outputs.
        task: weight of the task loss.
        outputs: weight of the loss between the outputs of model and teacher.
        token: weight of the loss between their hidden states.
        temperature: temperature of the loss between logits.

    Raises:
        ValueError: if a weight or the temperature is out of range, or all weights are zero.
    """
    if head.pooling is None:
        return DistillationLoss(task=task, logit=outputs, token=token, temperature=temperature)
    return DistillationLoss(
        task=task, cosine=outputs, token=token, temperature=temperature, pooling=head.pooling
    )


def _examples_seen(steps: int, examples: int, options: TrainingOptions, processes: int) -> int:
    """Return the examples seen in that many optimizer steps; the last batches of an epoch are smaller."""
    passes = math.ceil(examples / (options.batch_size * processes))
    per_epoch = math.ceil(passes / options.gradient_accumulation)
    epochs, rest = divmod(steps, per_epoch)
    per_step = options.batch_size * processes * options.gradient_accumulation
    return epochs * examples + min(rest * per_step, examples)


def _trained(trainer: DistillationTrainer, last: Path | None) -> TrainerState:
    """Train from the start, or from the last checkpoint."""
    # Checkpoints hold weights as safetensors. Trainer keeps the optimizer's state in torch's own format, but
    # reads it with `weights_only=True`, so that nothing is unpickled.
    trainer.train(resume_from_checkpoint=None if last is None else str(last))
    # In mixed precision, accelerate replaces `forward`.
    trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    return trainer.state


def needs_teacher(loss: DistillationLoss) -> bool:
    """Return whether the loss compares the model with a teacher."""
    return bool(loss.logit or loss.token or loss.cosine)


def check_teacher(
    model: PreTrainedModel, teacher: PreTrainedModel | None, loss: DistillationLoss | None
) -> None:
    """Raise UsageError if model, teacher and loss do not fit each other."""
    if teacher is None and loss is not None and needs_teacher(loss):
        raise UsageError("the loss needs a teacher, but there is none", "give one, or only a task loss")
    if teacher is not None and loss is None:
        raise UsageError("there is a teacher and no loss", "give both to distill, or neither")
    if teacher is model:
        raise UsageError("the teacher is the model that is trained", "give a copy")


def check_training(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    options: TrainingOptions,
    loss: DistillationLoss | None,
) -> None:
    """Raise UsageError if there are no examples or labels, or if precision or report_to cannot be used."""
    if len(features) == 0:
        raise UsageError("there are no examples to train on", "check the training data")
    if loss is None or loss.task:
        _check_labels(model, task, features)
    if options.precision != "float32" and model.device.type == "cpu":
        raise UsageError(
            f"precision {options.precision} needs a GPU", "use float32, or move the model to a GPU"
        )
    try:
        get_reporting_integration_callbacks(list(options.report_to))
    except ValueError as error:
        raise UsageError(
            f"report_to is unknown: {one_line(error)}", "leave it out, or use a name that transformers knows"
        ) from error


def _label_names(model: PreTrainedModel) -> set[str]:
    """Return the names of the labels that the model computes its own loss from."""
    return {name for name in LABELS if name in inspect.signature(model.forward).parameters}


def _check_labels(model: PreTrainedModel, task: Task, features: Sequence[Features]) -> None:
    """Raise UsageError unless the model can compute its own loss from the examples."""
    if not _label_names(model):
        raise UsageError(
            f"{type(model).__name__} has no loss of its own", "give a teacher, and a loss with task=0"
        )
    if not _label_names(model) & set(task.collate(features[:1])):
        raise UsageError("the examples have no labels", "check the training data, or distill with task=0")


def _arguments(
    model: PreTrainedModel, examples: int, options: TrainingOptions, folder: Path, checks: bool
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
        warmup_steps=options.warmup_ratio,  # values below 1 are a share of all steps
        lr_scheduler_type=options.schedule,
        seed=options.seed,
        bf16=options.precision == "bf16",
        fp16=options.precision == "fp16",
        use_cpu=model.device.type == "cpu",
        save_strategy="steps",
        eval_strategy="steps" if checks else "no",
        logging_strategy="steps",
        report_to=list(options.report_to) or "none",
        remove_unused_columns=False,
        dataloader_pin_memory=model.device.type != "cpu",
        disable_tqdm=True,
    )
    # Several GPUs need torchrun: without it, Trainer would split each batch among threads, while the teacher
    # sees all of it. (Reading `n_gpu` also makes the processes find each other.)
    arguments._n_gpu = min(arguments.n_gpu, 1)
    passes = math.ceil(examples / (options.batch_size * arguments.world_size))
    by_epochs = math.ceil(options.epochs * math.ceil(passes / options.gradient_accumulation))
    steps = options.max_steps if options.max_steps > 0 else by_epochs
    # Trainer accepts fractions of all steps as well, but then warns of a change when it resumes.
    arguments.save_steps = arguments.eval_steps = math.ceil(steps / options.checkpoints)
    arguments.logging_steps = math.ceil(steps / _LOGS)
    return arguments


@contextmanager
def _settings_kept(model: PreTrainedModel, dropout: bool) -> Iterator[None]:
    """While open, set dropout for a training; afterwards restore dropout and config, and set eval mode."""
    rates = {module: module.p for module in model.modules() if isinstance(module, nn.Dropout)}
    # Trainer switches the cache off; a classifier stores its problem type when it first sees labels.
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
    """Replace each parameter by a copy; tied parameters stay tied."""
    copies: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if parameter not in copies:
                    values = parameter.detach().clone(memory_format=torch.contiguous_format)
                    copies[parameter] = nn.Parameter(values, requires_grad=parameter.requires_grad)
                module._parameters[name] = copies[parameter]
