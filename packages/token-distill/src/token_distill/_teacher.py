"""The teacher: a module that is only ever read, and need not say the same thing twice."""

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
    """Runs a module without gradients and in eval mode, optionally in another dtype or on another device.

    The module is taken over: it is cast, moved and put into eval mode in place. Pass a deep copy of a
    model that is trained as well.

    Args:
        module: returns a tensor of logits or anything that :meth:`Outputs.of` reads.
        dtype: floating point dtype to run in; parameters and floating point inputs are cast, autocast is
            ignored.
        device: where to run; inputs are moved there, outputs back to where the inputs were.
        cache: a folder for :meth:`logits`, made if need be. It belongs to these weights in this dtype, so
            with a cache, too, autocast is ignored.

    Raises:
        ValueError: a dtype that is not floating point; a cache written with other weights.
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
            raise ValueError(
                f"dtype is {dtype}; a teacher runs in a floating point dtype, such as torch.bfloat16"
            )
        self.module = module.to(device=device, dtype=dtype)
        self._dtype = dtype
        self._device = None if device is None else torch.device(device)
        self._cache = None if cache is None else LogitsCache(Path(cache), _fingerprint(self.module))

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        """The module's outputs for these inputs, detached, in the teacher's dtype."""
        home = _device((args, kwargs))
        device = self._device or home
        fixed = self._dtype is not None or self._cache is not None
        precision = torch.autocast(device.type, enabled=False) if fixed else nullcontext()
        self.module.eval()  # a training loop may have called train() on a parent
        with torch.no_grad(), precision:
            outputs = Outputs.of(self.module(*self._brought(args), **self._brought(kwargs)))
        hidden_states = outputs.hidden_states
        return Outputs(
            _to(outputs.logits, home),
            None if hidden_states is None else tuple(hidden.detach().to(home) for hidden in hidden_states),
        )

    def logits(
        self, examples: Sequence[int | str] | Tensor, mask: Tensor | None, /, *args: Any, **kwargs: Any
    ) -> Outputs:
        """The logits for a batch, without hidden states: from the cache if all are in it, else computed.

        Meant for classifiers and spans; each token's logits over a vocabulary would fill the disk.

        Args:
            examples: an id for each example of the batch, which stands for its inputs in all epochs: those
                are not looked at when the logits are read. 7 and "7" are the same.
            mask: (batch, tokens), as the losses take it, if there are logits for each token: only those
                that count are stored, so that an example may be padded otherwise next time; padding then
                has logits 0.
            args: passed to the module.
            kwargs: passed to the module.

        Raises:
            ValueError: the number of ids is not that of the mask's examples or of the logits computed, or a
                stored example had another number of tokens.
        """
        keys = [str(example.item() if isinstance(example, Tensor) else example) for example in examples]
        kept = None
        if mask is not None:
            kept = boolean_mask(mask, mask.shape, "cached logits").cpu()  # (batch, tokens)
            _require_batch(keys, len(kept), "mask")
        if self._cache is not None and (rows := self._cache.read(keys)):
            return Outputs(_to(_joined(keys, rows, kept), _device((args, kwargs, mask))))
        logits = self(*args, **kwargs).logits
        if logits is None:
            raise ValueError("the teacher's output has no logits; only hidden states")
        if self._cache is not None:
            self._cache.write({k: row for k, row in _split(keys, logits, kept) if k not in self._cache})
        return Outputs(logits)

    def _brought(self, value: Any) -> Any:
        """The inputs on the teacher's device; floating point ones in its dtype."""
        if isinstance(value, Tensor):
            return value.to(self._device, self._dtype if value.is_floating_point() else None)
        if isinstance(value, dict):
            return {key: self._brought(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._brought(item) for item in value)
        return value


def _device(value: Any) -> torch.device:
    """Where the first tensor in nested arguments is."""
    return next(_tensors(value), torch.empty(0)).device


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _to(logits: Logits | None, device: torch.device) -> Logits | None:
    if isinstance(logits, tuple):
        return logits[0].detach().to(device), logits[1].detach().to(device)
    return None if logits is None else logits.detach().to(device)


def _split(keys: list[str], logits: Logits, kept: Tensor | None) -> Iterator[tuple[str, Row]]:
    """Each example's logits; of logits that each token has, those of the tokens that count."""
    parts = logits if isinstance(logits, tuple) else (logits,)
    _require_batch(keys, len(parts[0]), "logits")
    if kept is not None and _per_token(tuple(part[0] for part in parts)) and parts[0].shape[:2] != kept.shape:
        raise ValueError(f"the mask {tuple(kept.shape)} does not fit logits {tuple(parts[0].shape)}")
    for index, key in enumerate(keys):
        row = tuple(part[index] for part in parts)
        if kept is not None and _per_token(row):
            row = tuple(part[kept[index].to(part.device)] for part in row)
        yield key, row


def _joined(keys: list[str], rows: list[Row], kept: Tensor | None) -> Logits:
    """A batch of stored examples; the inverse of :func:`_split`, for the same or another padding."""
    if kept is not None and _per_token(rows[0]):
        rows = [
            tuple(_padded(key, part, mask) for part in row)
            for key, row, mask in zip(keys, rows, kept, strict=True)
        ]
    elif len(lengths := {part.shape for row in rows for part in row}) > 1:
        raise ValueError(
            f"cached logits have shapes {sorted(map(tuple, lengths))}; pass the mask to pad them"
        )
    parts = [torch.stack(part) for part in zip(*rows, strict=True)]
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def _padded(key: str, row: Tensor, kept: Tensor) -> Tensor:
    if len(row) != int(kept.sum()):
        raise ValueError(
            f"example {key} was cached with {len(row)} tokens and now has {int(kept.sum())}; "
            "give an example that changed a new id, or delete the cache"
        )
    padded = row.new_zeros(len(kept), *row.shape[1:])
    padded[kept] = row
    return padded


def _per_token(row: Row) -> bool:
    """Whether tokens are the first dimension: of a span's start and end, and of (tokens, classes)."""
    return len(row) == 2 or row[0].ndim == 2


def _require_batch(keys: list[str], size: int, what: str) -> None:
    if len(keys) != size:
        raise ValueError(
            f"{len(keys)} example ids were given for a batch of {size} (the {what}); give one each"
        )


def _fingerprint(module: nn.Module) -> str:
    """A digest of all weights: names, dtypes, shapes and values. A second for 110M parameters."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, Tensor):  # a module's extra state may be any object
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
