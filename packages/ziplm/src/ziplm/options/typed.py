"""The options of `ziplm.compress` as keyword arguments, for type checkers and editors."""

from collections.abc import Sequence
from typing import TypedDict

from ziplm.options.kinds import (
    Clock,
    Dtype,
    Engine,
    Loss,
    Method,
    Mode,
    Precision,
    Prior,
    Quantize,
    Regime,
    Search,
    Selection,
)


class CompressOptions(TypedDict, total=False):
    """Fields of `Options` that `ziplm.compress` takes by name; a test keeps both in step."""

    speedup: float | Sequence[float]
    latency_ms: float | Sequence[float]
    recover: float | Sequence[float]
    params: float | Sequence[float]
    flops: float | Sequence[float]
    bytes: float | Sequence[float]
    sparsity: float | Sequence[float]
    round_to: int
    uniform: bool
    text_column: str | Sequence[str]
    label_column: str | None
    max_length: int | None
    task_option: str | Sequence[str]
    calibration_samples: int | None
    search_samples: int
    regime: Regime
    input_length: int | Sequence[int]
    prompt_length: int | Sequence[int]
    new_tokens: int
    batch_size: int | None
    threads: int | None
    device: str
    dtype: Dtype
    engine: Engine
    quantize: Quantize | None
    attention: str | None
    clock: Clock
    latency_table: str | None
    profile_seconds: float
    measure_seconds: float
    method: Method
    gradients: bool
    head_width: bool
    selection: Selection
    update: bool
    centred: bool
    prior: Prior
    search: Search
    evaluations: int
    loss: Loss
    refit: bool | None
    mode: Mode
    preset: str | None
    dense_epochs: float
    dense_steps: int
    epochs_per_step: float
    steps_per_target: int
    train_minutes: float | None
    learning_rate: float | None
    warmup: float
    train_batch_size: int
    gradient_accumulation: int
    weight_decay: float
    dropout: bool | None
    precision: Precision
    task_weight: float | None
    logit_weight: float
    token_weight: float
    temperature: float
    keep_best: bool
    report_to: str | Sequence[str]
    alternatives: bool
    calibration_batch_size: int
    memory_gb: float
    seed: int
