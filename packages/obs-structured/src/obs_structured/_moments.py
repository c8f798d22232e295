"""Second moments of a layer's inputs, gathered batch by batch."""

import math
from collections.abc import Iterator

import torch

# Number of inputs per matrix product. Within such a chunk, products may be summed in float32; the sums of all
# chunks are added up in float64.
CHUNK = 4096


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
            self._products = torch.zeros(
                in_features, in_features, dtype=torch.float64, device=device
            )  # Σ w x xᵀ

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
        if weights is None:
            flat = torch.ones(len(rows), dtype=torch.float64, device=rows.device)  # (n,)
        else:
            flat = self._flat_weights(weights, inputs)
            rows, flat = rows[flat > 0], flat[flat > 0]
        with torch.autocast(self._sum.device.type, enabled=False):
            self._check_squares(rows, flat)  # the whole batch, before any of it is added
            for centred, mean, weight in _chunks(rows, flat):
                self._products += centred.mT @ centred
                self._products.addr_(mean, mean, alpha=weight)
                self._sum += weight * mean
                self._weight += weight
        self.count += len(rows)

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

    def _check_squares(self, rows: torch.Tensor, weights: torch.Tensor) -> None:
        """Raise ValueError unless the sums stay finite after adding these inputs (n, d) and weights (n,)."""
        total, squares = self._weight, self._products.diagonal().clone()  # Σ w, and Σ w x², (d,)
        for centred, mean, weight in _chunks(rows, weights):
            spread = centred.square().sum(0)  # (d,)
            finite = spread.isfinite()
            if not finite.all():
                raise _unusable(rows, int((~finite).sum()), centred.dtype)
            total += weight
            squares += spread + weight * mean.square()
        _check_sums(squares, total)

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
        return (self._products + self._products.mT) / self._nonempty_weight()

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


def _chunks(rows: torch.Tensor, weights: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, float]]:
    """Yield √w (x − mean), the mean and Σ w of each chunk of inputs (n, d) with weights (n,).

    The mean is float64; the centred inputs are float64 or float32. They are centred because a mean far larger
    than the spread would hide the spread in float32 products.
    """
    dtype = torch.float32 if rows.dtype != torch.float64 and _full_precision() else torch.float64
    for start in range(0, len(rows), CHUNK):
        chunk, chunk_weights = rows[start : start + CHUNK].double(), weights[start : start + CHUNK]
        total = float(chunk_weights.sum())
        mean = chunk_weights @ chunk / total  # (d,)
        yield ((chunk - mean) * chunk_weights.sqrt()[:, None]).to(dtype), mean, total


def _full_precision() -> bool:
    """Return whether float32 products are computed in float32, not in tf32 or bfloat16."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # raised if the precision is set for individual backends
        return False
