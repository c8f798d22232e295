"""The teacher: a frozen module, and an optional cache of its logits."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ._cache import LogitsCache, Row
from ._checks import boolean_mask
from ._outputs import Logits, Outputs


class Teacher:
    """A module run in eval mode without gradients, optionally in another dtype or on another device.

    The module is cast, moved and put into eval mode in place. If it is also being trained, pass a deep copy.

    Args:
        module: model that returns a tensor of logits, or anything that :meth:`Outputs.of` reads.
        dtype: floating point dtype to run in. Parameters and floating point inputs are cast to it, and
            autocast is disabled.
        device: device to run on. Inputs are moved to it, and outputs back to the device of the inputs.
        cache: folder in which :meth:`logits` stores its results; created if it does not exist. A cache is
            valid for one set of weights in one dtype, so autocast is disabled with a cache, too.

    Attributes:
        module: the module, in its dtype and on its device.

    Raises:
        ValueError: the dtype is not floating point, or the cache was written with other weights.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        cache: Path | str | None = None,
    ) -> None:
        if dtype is not None and not dtype.is_floating_point:
            raise ValueError(f"dtype is {dtype}; it must be a floating point dtype, such as torch.bfloat16")
        self.module = module.to(device=device, dtype=dtype)
        self._dtype = dtype
        self._device = None if device is None else torch.device(device)
        self._cache = None if cache is None else LogitsCache(Path(cache), _fingerprint(self.module))

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        """Run the module on these inputs and return its outputs, detached, in the teacher's dtype."""
        home = _device_of((args, kwargs))
        device = self._device or home
        fixed_dtype = self._dtype is not None or self._cache is not None
        precision = torch.autocast(device.type, enabled=False) if fixed_dtype else nullcontext()
        self.module.eval()  # a training loop may have called train() on a parent
        with torch.no_grad(), precision:
            outputs = Outputs.of(self.module(*self._moved(args), **self._moved(kwargs)))
        hidden_states = outputs.hidden_states
        return Outputs(
            _detached(outputs.logits, home),
            None if hidden_states is None else tuple(hidden.detach().to(home) for hidden in hidden_states),
        )

    def logits(
        self, examples: Sequence[int | str] | Tensor, mask: Tensor | None, /, *args: Any, **kwargs: Any
    ) -> Outputs:
        """Return the logits of a batch, without hidden states.

        They are read from the cache if it holds all examples of the batch; otherwise the batch is computed
        and added to the cache. Meant for classifiers and spans: the logits of every token over a vocabulary
        would fill the disk.

        Args:
            examples: an id for each example of the batch. It must stand for the same input in every epoch:
                when logits are read from the cache, the inputs are not looked at. 7 and "7" are the same id.
            mask: (batch, tokens), 1 or True for tokens, 0 for padding; needed for spans and logits per token.
                Only the logits of tokens are stored, so an example may be padded differently next time.
                Logits read from the cache are 0 in padding. None if there is no padding, or for logits per
                example.
            args: positional arguments of the module.
            kwargs: keyword arguments of the module.

        Raises:
            ValueError: the number of ids differs from the batch size of the mask or the logits, a cached
                example had another number of tokens, cached logits of different lengths are read without a
                mask, or the module returns no logits.
        """
        keys = [str(example.item() if isinstance(example, Tensor) else example) for example in examples]
        kept = None
        if mask is not None:
            kept = boolean_mask(mask, mask.shape, "cached logits").cpu()  # (batch, tokens)
            _require_batch(keys, len(kept), "mask")
        if self._cache is not None and (rows := self._cache.read(keys)):
            return Outputs(_detached(_join(keys, rows, kept), _device_of((args, kwargs, mask))))
        logits = self(*args, **kwargs).logits
        if logits is None:
            raise ValueError("the teacher's output has no logits, only hidden states")
        if self._cache is not None:
            self._cache.write({k: row for k, row in _split(keys, logits, kept) if k not in self._cache})
        return Outputs(logits)

    def _moved(self, value: Any) -> Any:
        """Return nested inputs on the teacher's device, floating point tensors in its dtype."""
        if isinstance(value, Tensor):
            return value.to(self._device, self._dtype if value.is_floating_point() else None)
        if isinstance(value, dict):
            return {key: self._moved(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._moved(item) for item in value)
        return value


def _device_of(value: Any) -> torch.device:
    """Return the device of the first tensor in nested arguments; the CPU if there is none."""
    return next(_tensors(value), torch.empty(0)).device


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _detached(logits: Logits | None, device: torch.device) -> Logits | None:
    if isinstance(logits, tuple):
        return logits[0].detach().to(device), logits[1].detach().to(device)
    return None if logits is None else logits.detach().to(device)


def _split(keys: list[str], logits: Logits, kept: Tensor | None) -> Iterator[tuple[str, Row]]:
    """Yield each example's key and logits; logits per token without those of padding."""
    parts = logits if isinstance(logits, tuple) else (logits,)
    _require_batch(keys, len(parts[0]), "logits")
    if kept is not None and _per_token(tuple(part[0] for part in parts)) and parts[0].shape[:2] != kept.shape:
        raise ValueError(
            f"mask {tuple(kept.shape)} does not fit logits {tuple(parts[0].shape)}; "
            "it must have the first two dimensions of the logits"
        )
    for index, key in enumerate(keys):
        row = tuple(part[index] for part in parts)
        if kept is not None and _per_token(row):
            row = tuple(part[kept[index].to(part.device)] for part in row)
        yield key, row


def _join(keys: list[str], rows: list[Row], kept: Tensor | None) -> Logits:
    """Return the batch of cached examples, padded as the mask says; the inverse of :func:`_split`."""
    if kept is not None and _per_token(rows[0]):
        rows = [
            tuple(_padded(key, part, mask) for part in row)
            for key, row, mask in zip(keys, rows, kept, strict=True)
        ]
    elif len(shapes := {part.shape for row in rows for part in row}) > 1:
        raise ValueError(f"cached logits have shapes {sorted(map(tuple, shapes))}; pass the mask to pad them")
    parts = [torch.stack(part) for part in zip(*rows, strict=True)]
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def _padded(key: str, row: Tensor, kept: Tensor) -> Tensor:
    if len(row) != int(kept.sum()):
        raise ValueError(
            f"example {key} was cached with {len(row)} tokens and now has {int(kept.sum())}; "
            "give a new id to an example that has changed, or delete the cache"
        )
    padded = row.new_zeros(len(kept), *row.shape[1:])
    padded[kept] = row
    return padded


def _per_token(row: Row) -> bool:
    """Whether one example's logits have a first dimension of tokens: (tokens, classes), or a span."""
    return len(row) == 2 or row[0].ndim == 2


def _require_batch(keys: list[str], size: int, what: str) -> None:
    if len(keys) != size:
        raise ValueError(
            f"{len(keys)} example ids were given for a batch of {size} (first dimension of the {what}); "
            "give one id per example"
        )


def _fingerprint(module: nn.Module) -> str:
    """Return a digest of the names, dtypes, shapes and values of all weights.

    It takes a second for 110M parameters.
    """
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, Tensor):  # extra state of a module may be any object
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
