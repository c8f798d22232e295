"""The workload of a measurement: which inputs, in which environment, and what a model does with them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Literal

import torch
from latency_profiler import Environment, check_half_precision, resolve_engine
from transformers import PreTrainedModel

from ziplm.architectures.registry import positions_of
from ziplm.errors import UsageError, one_line
from ziplm.options.setting import Setting
from ziplm.tasks.finite import require_finite

DEFAULT_LENGTHS = (16, 64, 128)  # for latency and generate, where they fit the model
TOP_K = 50


def dtype_of(setting: Setting) -> torch.dtype:
    """Return the data type of the measured models."""
    dtype: torch.dtype = getattr(torch, setting.dtype)
    return dtype


def describe(setting: Setting) -> str:
    """Describe a setting in one line."""
    lengths = ", ".join(map(str, setting.lengths)) or "default numbers of"
    mean, median = ("mean ", "median ") if len(setting.lengths) > 1 else ("", "")
    inputs = {
        "throughput": f"throughput of batches of {setting.batch_size} x {lengths} tokens",
        "latency": f"{mean}latency of batches of {setting.batch_size} x {lengths} tokens",
        "generate": f"{median}generation of {setting.new_tokens} tokens after prompts of {lengths} tokens",
    }[setting.regime]
    threads = setting.threads or torch.get_num_threads()
    return (
        f"{inputs}; {threads} thread{'s' if threads > 1 else ''}, engine {setting.engine}, "
        f"{setting.quantize or setting.dtype} on {setting.device}, {clock_of(setting)} time"
    )


def clock_of(setting: Setting) -> Literal["wall", "cpu"]:
    """Return the clock of a setting; an unresolved "auto" means wall time."""
    return "cpu" if setting.clock == "cpu" else "wall"


def setting_for(setting: Setting, models: Sequence[PreTrainedModel]) -> Setting:
    """Check that all models can take the setting's inputs; return the setting with default lengths filled in.

    Raises:
        UsageError: if a length, or a prompt with its new tokens, is too long for a model, or if a model
            should generate text and cannot.
    """
    generates = setting.regime == "generate"
    positions = _positions(models)
    if generates:
        _check_generation(setting, models, positions)
    longest = positions - (setting.new_tokens if generates else 0)
    setting = with_default_lengths(setting, models)
    one, several = ("a prompt", "prompts") if generates else ("an input", "inputs")
    if setting.lengths[0] < 1:
        raise UsageError(f"{one} cannot have {setting.lengths[0]} tokens", "give whole numbers from 1 up")
    if setting.lengths[-1] > longest:
        new = f" and {setting.new_tokens} new ones" if generates else ""
        raise UsageError(
            f"{one} of {setting.lengths[-1]} tokens{new} is too long",
            f"the model takes {positions}: give {several} of up to {longest}",
        )
    return setting


def with_default_lengths(setting: Setting, models: Sequence[PreTrainedModel]) -> Setting:
    """Return the setting with lengths; those that it lacks are the defaults that fit the models."""
    if setting.lengths:
        return setting
    longest = _positions(models) - (setting.new_tokens if setting.regime == "generate" else 0)
    fitting = tuple(length for length in DEFAULT_LENGTHS if length <= longest)
    return replace(setting, lengths=fitting or (max(1, longest),))


def _positions(models: Sequence[PreTrainedModel]) -> int:
    """Return the number of tokens that all models take."""
    return min(positions_of(model.config) for model in models)


def _check_generation(setting: Setting, models: Sequence[PreTrainedModel], positions: int) -> None:
    for model in models:
        if not model.can_generate():
            raise UsageError(
                f"{type(model).__name__} cannot generate text",
                "use --regime latency or throughput, or a decoder with a language head",
            )
    if not 1 <= setting.new_tokens < positions:
        raise UsageError(
            f"{setting.new_tokens} new tokens cannot be generated",
            f"with their prompt they must fit the model's {positions} positions: give fewer --new-tokens",
        )


def require_device(setting: Setting) -> None:
    """Raise an error if there is no such device, or if it cannot compute in the data type.

    Raises:
        UsageError, latency_profiler.OptionError: as for `environment_of`.
    """
    environment_of(setting, None)


def environment_of(setting: Setting, attention: str | None) -> Environment:
    """Return the environment that is recorded with the measurements.

    Raises:
        UsageError: if there is no such device.
        latency_profiler.OptionError: if the device cannot compute in the data type.
    """
    try:
        check_half_precision(dtype_of(setting), torch.device(setting.device))
    except RuntimeError as error:
        raise UsageError(
            f"{setting.device!r} is not a device: {one_line(error)}", "use cpu or cuda"
        ) from None
    details: dict[str, str | int | float] = {"attention": attention or "default", "regime": setting.regime}
    if setting.regime != "throughput":
        name = "prompt lengths" if setting.regime == "generate" else "input lengths"
        details[name] = " ".join(map(str, setting.lengths)) or "default"
    if setting.regime == "generate":
        details |= {"new tokens": setting.new_tokens, "top k": TOP_K}
    return Environment.current(
        setting.device,
        dtype_of(setting),
        setting.batch_size,
        setting.lengths[0] if setting.regime == "throughput" else None,
        threads=setting.threads,
        engine=resolve_engine(setting.engine, setting.quantize, setting.threads),
        clock=clock_of(setting),
        details=details,
    )


def kept_seed(setting: Setting) -> AbstractContextManager[None]:
    """While open, code may seed torch's generators; afterwards, the caller's state is restored."""
    device = torch.device(setting.device)
    return torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type)


def generation(model: PreTrainedModel, new_tokens: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that extends prompts (batch, tokens) by exactly `new_tokens` tokens.

    It uses a cache and top-k sampling. Every call sets the seed of torch, so that the result is always the
    same.
    """

    @torch.inference_mode()
    def generate(prompts: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        made: torch.Tensor = model.generate(  # type: ignore[operator]
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=TOP_K,
            num_beams=1,
            use_cache=True,
            min_new_tokens=new_tokens,  # do not stop at the end of text
            max_new_tokens=new_tokens,
            pad_token_id=0,  # unused; silences a warning
        )
        return made

    return generate


def random_tokens(models: Sequence[PreTrainedModel], setting: Setting, length: int) -> torch.Tensor:
    """Return random tokens (batch, length) that all models know, on the setting's device; always the same."""
    vocabulary = min(model.config.vocab_size for model in models)
    shape = (setting.batch_size, length)
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(0)).to(setting.device)


@torch.inference_mode()
def require_finite_outputs(name: str, model: PreTrainedModel, tokens: torch.Tensor) -> None:
    """Raise NotFinite if a model's outputs are not finite: their time may not be that of other numbers."""
    made = model(tokens).values()
    numbers = [value for value in made if isinstance(value, torch.Tensor) and value.is_floating_point()]
    require_finite(f"the outputs of {name}", numbers)
