"""The options of a run with their defaults and help texts, section by section."""

from ziplm.options.fields import Number, Numbers, Section, Text, Texts, Whole, Wholes, option
from ziplm.options.kinds import (
    Clock,
    Dtype,
    Engine,
    Loss,
    Method,
    Prior,
    Quantize,
    Regime,
    Search,
    Selection,
)


class EssentialOptions(Section):
    """The model to compress, its task and data, one kind of target, and the run folder."""

    model: Text = option(
        "", "essential", "Folder of a checkpoint, or name of a model on the hub.", metavar="MODEL"
    )
    task: Text = option(
        "",
        "essential",
        "Name of the task, such as sst2, classification or causal-lm; `ziplm evaluate --help` lists all.",
    )
    speedup: Numbers = option(
        (), "essential", "Make a model this many times as fast as the dense model. Repeatable.", metavar="X"
    )
    train_file: Text | None = option(
        None,
        "essential",
        "File with examples to calibrate and fine-tune on: csv, tsv, json, parquet or text.",
        metavar="FILE",
        unset="the task's own dataset",
    )
    validation_file: Text | None = option(
        None,
        "essential",
        "File with examples to evaluate on.",
        metavar="FILE",
        unset="the task's own dataset",
    )
    output: Text = option("", "essential", "Run folder. If it exists, the run is resumed.", metavar="RUN")


class TargetOptions(Section):
    """Targets other than a speedup, and limits of size."""

    latency_ms: Numbers = option(
        (), "targets", "Make a model that takes at most this many milliseconds. Repeatable.", metavar="MS"
    )
    recover: Numbers = option(
        (),
        "targets",
        "Make the fastest model that keeps this share of the dense model's metric, such as 0.99. Repeatable.",
        metavar="SHARE",
    )
    params: Numbers = option(
        (),
        "targets",
        "Keep at most this many parameters in the layers (not embeddings and head).",
        metavar="N",
    )
    flops: Numbers = option(
        (),
        "targets",
        "Keep at most this many FLOPs in the layers, for one measured batch or generation.",
        metavar="N",
    )
    bytes: Numbers = option((), "targets", "Keep at most this many bytes of layer weights.", metavar="N")
    sparsity: Numbers = option(
        (), "targets", "Remove at least this share of the layers' parameters, such as 0.5.", metavar="SHARE"
    )
    round_to: Whole = option(
        1, "targets", "Make widths of FFNs and heads multiples of this number, such as 8, 16 or 64."
    )
    uniform: bool = option(False, "targets", "Give all layers the same number of heads and the same width.")


class DataOptions(Section):
    """Which examples to use, and how to read them."""

    eval_file: Text | None = option(
        None, "data", "File with other examples to evaluate on, instead of --validation-file.", metavar="FILE"
    )
    text_column: Texts = option(
        (),
        "data",
        "Name of the column with text. Give it twice for pairs of texts.",
        metavar="NAME",
        unset="a common name, such as text or sentence, else the first column with text",
    )
    label_column: Text | None = option(
        None,
        "data",
        "Name of the column with labels: numbers from 0, or the names in the model's label2id.",
        metavar="NAME",
        unset="a common name, such as label or class",
    )
    max_length: Whole | None = option(
        None,
        "data",
        "Cut examples to this many tokens.",
        unset="--input-length for throughput, else 128 or a longer --input-length",
    )
    task_option: Texts = option(
        (), "data", "Setting of the task, such as stride=64 or pooling=cls. Repeatable.", metavar="NAME=VALUE"
    )
    calibration_samples: Whole | None = option(
        None,
        "data",
        "Number of training examples to calibrate on.",
        unset="up to 2048, as few as 1024 if the texts are long; 512 windows for language models",
    )
    search_samples: Whole = option(
        256,
        "data",
        "Number of training samples for comparing candidates in the search; as many others judge its result.",
    )


class EnvironmentOptions(Section):
    """Where and on which inputs the models are measured."""

    regime: Regime = option(
        "throughput",
        "environment",
        "What must be fast: throughput of full batches, latency of single inputs of several lengths, or text "
        "generation with a cache.",
    )
    input_length: Wholes = option(
        (),
        "environment",
        "Length of the measured inputs in tokens, for throughput and latency. Repeatable for latency.",
        unset="throughput: 128; latency: 10th, 50th and 90th percentile of the training data's lengths, "
        "or 16, 64 and 128 in commands without data",
    )
    prompt_length: Wholes = option(
        (),
        "environment",
        "Length of the measured prompts in tokens, for generate. Repeatable.",
        unset="16, 64 and 128, where they fit",
    )
    new_tokens: Whole = option(
        64, "environment", "Number of tokens to generate after each prompt, for generate."
    )
    batch_size: Whole | None = option(
        None,
        "environment",
        "Batch size of the measured inputs.",
        unset="8 for throughput, 1 for latency and generate",
    )
    threads: Whole | None = option(
        None,
        "environment",
        "Number of threads while measuring; other work uses torch's own number.",
        unset="torch's own number",
    )
    device: Text = option("cpu", "environment", "Device such as cpu, cuda or cuda:0.")
    dtype: Dtype = option("float32", "environment", "Data type of the measured models.")
    engine: Engine = option(
        "eager",
        "environment",
        "Engine that runs the models when they are measured and evaluated. onnxruntime and openvino run "
        "exported files, which compress saves with each model.",
    )
    quantize: Quantize | None = option(
        None,
        "environment",
        "Quantise the exported models: int8, for onnxruntime and openvino. Speedups still refer to the dense "
        "model in float32.",
    )
    attention: Text | None = option(
        None,
        "environment",
        "Attention implementation, such as eager, sdpa or flash_attention_2.",
        unset="the default of transformers",
    )
    clock: Clock = option(
        "auto",
        "environment",
        "Clock of the measurements: wall time, CPU time, or auto, which uses CPU time if the machine is too "
        "busy for wall time and one thread is measured.",
    )
    latency_table: Text | None = option(
        None,
        "environment",
        "Latency table measured elsewhere with `ziplm profile`; nothing is measured here then.",
        metavar="FILE",
    )
    profile_seconds: Number = option(
        45.0,
        "environment",
        "Time limit for measuring the latency table, without the time to export branches for an engine.",
    )
    measure_seconds: Number = option(30.0, "environment", "Time limit for measuring one model.")


class MethodOptions(Section):
    """How models are pruned and candidates are searched."""

    method: Method = option("default", "method", "Use ziplm for the configuration of the ZipLM paper.")
    gradients: bool = option(
        True, "method", "Weight errors by loss gradients, which takes one backward pass."
    )
    head_width: bool = option(
        True,
        "method",
        "Make heads narrower as well as fewer, unless they have rotary embeddings; needs gradients, the "
        "selection obs and updated weights.",
    )
    selection: Selection = option("obs", "method", "How the heads and columns to remove are chosen.")
    update: bool = option(True, "method", "Correct the remaining weights for those that are removed.")
    centred: bool = option(
        True, "method", "Let biases take over the mean output of what is removed.", off="--not-centred"
    )
    prior: Prior = option(
        "auto", "method", "Estimate of the harm of each size. auto tries all of them except own, the paper's."
    )
    search: Search = option(
        "direct", "method", "Search method. prior takes the best solution of the priors, without a search."
    )
    evaluations: Whole = option(
        32,
        "method",
        "Largest number of candidates that the search evaluates; with --method ziplm 1000. Unless with that "
        "method, it ends after 16 in a row without an improvement.",
    )
    loss: Loss = option(
        "kl",
        "method",
        "Loss of the search: divergence from the dense model (kl), or the task's own.",
    )
    refit: bool | None = option(
        None,
        "method",
        "Fit the remaining weights to the dense model, and keep the result if it helps.",
        unset="on, but off for models that read a single token of a text, such as classifiers",
    )


class RunOptions(Section):
    """How the run itself works."""

    alternatives: bool = option(
        False,
        "run",
        "Also measure and evaluate whole layers dropped and, with --quantize int8, int8 alone.",
    )
    calibration_batch_size: Whole = option(32, "run", "Batch size while calibrating and evaluating.")
    memory_gb: Number = option(
        2.0, "run", "Memory for Hessians in GiB. If they need more, calibration makes several passes."
    )
    seed: Whole = option(0, "run", "Seed of everything that is random.")
