"""Second moments of a layer's inputs, gathered batch by batch."""

import math

import torch

from obs_structured._chunks import Chunk, chunks_of, dtype_of_products, largest_of
from obs_structured._threads import threads_for

# Σ w x xᵀ is symmetric, so only blocks on and above the diagonal are computed, in strips of this many rows.
# This takes 0.6-0.8 of the time of the full product.
STRIP = 192
_SAFE = 1e307  # twice this is finite


class Moments:
    """Streaming mean and second moment of a layer's inputs, for `prune`.

    Args:
        in_features: d, the length of an input vector.
        device: where the sums are stored; batches are moved there. Default: torch's default device.

    Example:
        >>> moments = Moments(3)
        >>> moments.update(torch.eye(3))
        >>> moments.hessian.diagonal().tolist()
        [0.6666666666666666, 0.6666666666666666, 0.6666666666666666]
    """

    def __init__(self, in_features: int, device: torch.device | str | None = None) -> None:
        if type(in_features) is not int or in_features < 1:
            raise ValueError(f"in_features is {in_features!r}, but must be a positive integer")
        self.in_features = in_features
        """Length of an input vector."""
        self.count = 0
        """Number of inputs added, not counting those of weight 0."""
        self._weight = 0.0  # Σ w
        with torch.inference_mode(False):  # tensors created in inference mode cannot be changed outside it
            self._sum = torch.zeros(in_features, dtype=torch.float64, device=device)  # Σ w x
            # Σ w x xᵀ on and above the diagonal; some entries below it are filled as well, but not read.
            self._products = torch.zeros(in_features, in_features, dtype=torch.float64, device=device)

    def __repr__(self) -> str:
        return f"Moments(in_features={self.in_features}, count={self.count})"

    @torch.no_grad()
    def update(self, inputs: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """Add a batch of inputs.

        Args:
            inputs: x, (..., in_features), any float dtype. Products are computed in float64 if the inputs are
                float64, else at least in float32, even under autocast. They are added up in float64.
            weights: w, (...), not negative. Inputs of weight 0, such as padding, are ignored and may hold any
                value. Default: 1 for all inputs.

        Raises:
            ValueError: if a shape or dtype is wrong, a weight is negative or not finite, an input or its
                weighted square is not finite, or the sums overflow. The moments are then unchanged.
        """
        self._check_inputs(inputs)
        rows = inputs.detach().reshape(-1, self.in_features).to(self._sum.device)  # (n, d)
        flat = None
        if weights is not None:
            flat = self._flat_weights(weights, inputs)  # (n,)
            if not flat.all():
                rows, flat = rows[flat > 0], flat[flat > 0]
        with (
            torch.autocast(self._sum.device.type, enabled=False),
            threads_for(len(rows) * self.in_features**2),
        ):
            self._check_squares(rows, flat)  # the whole batch, before any of it is added
            for chunk in chunks_of(rows, flat):
                self._add(chunk)
        self.count += len(rows)

    def _add(self, chunk: Chunk) -> None:
        # Σ w x xᵀ = Σ w (x − centre)(x − centre)ᵀ + Σ w (mean meanᵀ − offset offsetᵀ)
        left = chunk.weight * torch.stack([chunk.mean, -chunk.offset], dim=1)  # (d, 2)
        right = torch.stack([chunk.mean, chunk.offset])  # (2, d)
        for start in range(0, self.in_features, STRIP):
            stop = start + STRIP
            strip = chunk.centred[:, start:stop].mT @ chunk.centred[:, start:]  # (b, d - start)
            self._products[start:stop, start:] += strip.double().addmm_(left[start:stop], right[:, start:])
        self._sum += chunk.weight * chunk.mean
        self._weight += chunk.weight

    def _check_inputs(self, inputs: torch.Tensor) -> None:
        rule = f"inputs must be a floating-point tensor of shape (..., {self.in_features})"
        if not isinstance(inputs, torch.Tensor):
            raise ValueError(f"{rule}, not {type(inputs).__name__}")
        if not inputs.is_floating_point() or inputs.shape[-1:] != (self.in_features,):
            raise ValueError(f"{rule}, not {inputs.dtype} of shape {tuple(inputs.shape)}")

    def _flat_weights(self, weights: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Check the weights and return them as float64 (n,)."""
        if weights.shape != inputs.shape[:-1]:
            raise ValueError(
                f"weights have shape {tuple(weights.shape)}, but must have {tuple(inputs.shape[:-1])}"
            )
        flat = weights.detach().reshape(-1).to(self._sum.device, torch.float64)
        valid = (flat >= 0) & flat.isfinite()
        if not valid.all():
            raise ValueError(
                f"weights contain {flat[~valid][0].item():g}, but must be finite and not negative"
            )
        return flat

    def _check_squares(self, rows: torch.Tensor, weights: torch.Tensor | None) -> None:
        """Raise ValueError unless the sums stay finite after adding these inputs (n, d) and weights (n,)."""
        if not len(rows):
            return
        added = float(len(rows)) if weights is None else float(weights.sum())
        squares = self._products.diagonal()  # Σ w x², (d,)
        # No centred value is larger than twice the largest input. If even that bound is harmless, as it
        # nearly always is, the sums need not be looked at one by one.
        largest = 2 * largest_of(rows)
        bound = largest * largest * added  # nan if an input is nan
        limit = torch.finfo(dtype_of_products(rows)).max
        if not (bound < limit / 4 and bound + float(squares.max()) < _SAFE):
            squares = squares.clone()
            for chunk in chunks_of(rows, weights):
                spread = chunk.centred.square().sum(0)  # (d,)
                finite = spread.isfinite()
                if not finite.all():
                    raise _unusable(rows, int((~finite).sum()), spread.dtype)
                squares += spread + chunk.weight * chunk.mean.square()
        _check_sums(squares, self._weight + added)

    def merge(self, other: "Moments") -> None:
        """Add the moments of another instance, as if its batches had been added here.

        Raises:
            ValueError: if the other instance has a different number of features, or the sums overflow. The
                moments are then unchanged.
        """
        if other.in_features != self.in_features:
            raise ValueError(
                f"cannot merge moments of {other.in_features} features into moments of {self.in_features}"
            )
        products = other._products.to(self._products.device)
        _check_sums(self._products.diagonal() + products.diagonal(), self._weight + other._weight)
        self._products += products
        self._sum += other._sum.to(self._sum.device)
        self._weight += other._weight
        self.count += other.count

    def all_reduce(self) -> None:
        """Replace the moments on every worker by the sum over all workers of torch.distributed.

        Does nothing if torch.distributed is not initialised.

        Raises:
            ValueError: on every worker, if the sums overflow. The moments cannot be used any more.
        """
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        totals = torch.tensor([self._weight, self.count], dtype=torch.float64, device=self._sum.device)
        for tensor in (self._products, self._sum, totals):
            torch.distributed.all_reduce(tensor)
        self._weight, self.count = float(totals[0]), int(totals[1])
        _check_sums(self._products.diagonal(), self._weight)

    @property
    def hessian(self) -> torch.Tensor:
        """Twice the second moment of the inputs, 2 Σ w x xᵀ / Σ w, float64 (in_features, in_features)."""
        upper = self._products.triu()
        diagonal = upper.diagonal().clone()
        hessian = (upper + upper.mT).mul_(2 / self._nonempty_weight())
        hessian.diagonal().copy_(2 * diagonal / self._weight)
        return hessian

    @property
    def mean(self) -> torch.Tensor:
        """Mean of the inputs, Σ w x / Σ w, float64 (in_features,)."""
        return self._sum / self._nonempty_weight()

    def _nonempty_weight(self) -> float:
        """Return Σ w, or raise ValueError if no input has been added."""
        if self.count == 0:
            raise ValueError("no inputs have been added yet; call update first")
        return self._weight


def _unusable(rows: torch.Tensor, features: int, dtype: torch.dtype) -> ValueError:
    """Return the error for inputs (n, d) whose weighted squares are not finite in some features."""
    values = rows.double()
    finite = values.isfinite()
    if not finite.all():
        return ValueError(
            f"inputs are nan or inf in {int((~finite).sum())} of {finite.numel()} values; all must be finite"
        )
    name, limit = ("float64", "1e308") if dtype == torch.float64 else ("float32", "1e38")
    advice = "divide all inputs by a constant" + (", or pass them as float64" if name == "float32" else "")
    return ValueError(
        f"the weighted squares of the inputs add up to more than a {name} can hold (about {limit}) in "
        f"{features} of {rows.shape[1]} features; the largest absolute input is "
        f"{float(values.abs().max()):.3g}; {advice}"
    )


def _check_sums(squares: torch.Tensor, weight: float) -> None:
    """Raise ValueError unless 2 Σ w x², (d,), and Σ w are finite.

    The factor 2 is that of the Hessian. No other sum is larger than these two.
    """
    if math.isinf(weight):
        raise ValueError(
            "weights add up to more than a float64 can hold (about 1e308); divide them by a constant"
        )
    finite = (2 * squares).isfinite()
    if not finite.all():
        raise ValueError(
            f"the weighted squares of the inputs add up to more than a float64 can hold (about 1e308) in "
            f"{int((~finite).sum())} of {len(squares)} features; divide all inputs by a constant"
        )
