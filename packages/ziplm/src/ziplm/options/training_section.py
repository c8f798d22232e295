"""The options of fine-tuning, with their defaults and help texts."""

from ziplm.options.fields import Number, Section, Text, Texts, Whole, option
from ziplm.options.kinds import Mode, Precision


class FinetuneOptions(Section):
    """Fine-tuning, with `mode` finetune or gradual."""

    mode: Mode = option(
        "oneshot",
        "training",
        "How targets are made: oneshot makes every target from the dense model without training; finetune "
        "also fine-tunes it; gradual makes each target from the one before, and fine-tunes it.",
    )
    preset: Text | None = option(
        None, "training", "Hyper-parameters from the paper for all options not given; see `ziplm presets`."
    )
    dense_epochs: Number = option(
        0.0, "training", "Epochs of fine-tuning the dense model before pruning. The result is the teacher."
    )
    dense_steps: Whole = option(
        -1,
        "training",
        "Optimizer steps of fine-tuning the dense model; 0 for none, -1 to use --dense-epochs.",
    )
    epochs_per_step: Number = option(8.0, "training", "Epochs of fine-tuning for each target.")
    steps_per_target: Whole = option(
        -1,
        "training",
        "Optimizer steps of fine-tuning for each target; -1 to use --epochs-per-step.",
    )
    train_minutes: Number | None = option(
        None,
        "training",
        "Minutes of fine-tuning for each target, instead of epochs or steps. A few steps are timed first, "
        "which decides the number of steps.",
    )
    learning_rate: Number | None = option(
        None,
        "training",
        "Highest learning rate of each fine-tuning.",
        unset="chosen for each model by its distance from the dense model; 8e-5 for the dense model",
    )
    warmup: Number = option(
        0.1,
        "training",
        "Share of the steps in which the learning rate rises; after them, it falls to zero.",
    )
    train_batch_size: Whole = option(32, "training", "Batch size of fine-tuning.")
    gradient_accumulation: Whole = option(1, "training", "Forward passes per optimizer step.")
    weight_decay: Number = option(0.03, "training", "Weight decay of fine-tuning.")
    dropout: bool | None = option(
        None,
        "training",
        "Use the model's dropout while fine-tuning.",
        unset="off with a teacher, on without",
    )
    precision: Precision = option("float32", "training", "Numeric precision of fine-tuning on a GPU.")
    task_weight: Number | None = option(
        None,
        "training",
        "Weight λ1 of the task's own loss.",
        unset="0, but 1 for language models",
    )
    logit_weight: Number = option(
        1.0, "training", "Weight λ2 of the distillation of outputs; for embeddings, of their cosine distance."
    )
    token_weight: Number = option(
        0.5, "training", "Weight λ3 of the distillation of hidden states, token by token."
    )
    temperature: Number = option(1.0, "training", "Temperature of the distillation of outputs.")
    keep_best: bool = option(
        True,
        "training",
        "Keep the judging samples apart from fine-tuning. Save the last weights, unless earlier ones are "
        "clearly better on these samples, and stop early if nothing improves.",
    )
    report_to: Texts = option(
        (), "training", "Experiment tracker, by its name in transformers, such as tensorboard. Repeatable."
    )
