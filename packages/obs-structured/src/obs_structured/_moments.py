"""Second moments of a layer's inputs, gathered batch by batch."""

from collections.abc import Iterator

import torch

# Rows per product: what is summed in the inputs' own precision before it joins the float64 sums.
CHUNK = 4096


class Moments:
    """Streaming second moment and mean of vectors, for `prune`.

    Args:
        in_features: d, the length of the vectors.
        device: where the sums live; batches are brought there. Default: torch's default device.

    Example:
        >>> moments = Moments(3)
        >>> moments.update(torch.eye(3))
        >>> moments.hessian.diagonal().tolist()
        [0.6666666666666666, 0.6666666666666666, 0.6666666666666666]
    """

    def __init__(self, in_features: int, device: torch.device | str | None = None) -> None:
        if in_features < 1:
            raise ValueError(f"in_features is {in_features}, but must be at least 1")
        self.in_features = in_features
        self.count = 0
        """How many vectors were seen, those of weight 0 aside."""
        self._weight = 0.0  # Σ w
        with torch.inference_mode(False):  # tensors made in inference mode cannot be changed outside it
            self._sum = torch.zeros(in_features, dtype=torch.float64, device=device)  # Σ w x
            self._products = torch.zeros(
                in_features, in_features, dtype=torch.float64, device=device
            )  # Σ w x xᵀ

    def __repr__(self) -> str:
        return f"Moments(in_features={self.in_features}, count={self.count})"

    @torch.no_grad()
    def update(self, inputs: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """Add a batch.

        Args:
            inputs: (..., in_features), any float dtype. Products are taken in float32, or in float64 where
                the inputs are, also under autocast; they are summed in float64.
            weights: (...), nonnegative; a vector of weight 0, such as padding, is not looked at. Default: 1.

        Raises:
            ValueError: on wrong shapes, negative or non-finite weights, and inputs (or their squares) that
                are not finite. What was gathered before stays as it was.
        """
        rows, scale = self._rows(inputs, weights)  # (n, d), (n,)
        with torch.autocast(self._sum.device.type, enabled=False):
            for centred, _, _ in self._chunks(rows, scale):  # all are looked at before the first is taken
                squares = centred.square().sum(0)
                if not squares.isfinite().all():
                    bad = int((~squares.isfinite()).sum())
                    raise ValueError(
                        f"inputs, or their squares times the weights, are nan or inf in {bad} of "
                        f"{self.in_features} features; all must be finite"
                    )
            for centred, mean, weight in self._chunks(rows, scale):
                self._products += centred.mT @ centred
                self._products.addr_(mean, mean, alpha=weight)
                self._sum += weight * mean
                self._weight += weight
        self.count += len(rows)

    def _rows(self, inputs: torch.Tensor, weights: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors (n, d) of positive weight, and their weights (n,) float64."""
        wanted = f"floating point of shape (..., {self.in_features})"
        if not isinstance(inputs, torch.Tensor):
            raise ValueError(f"inputs are {type(inputs).__name__}, but must be a tensor, {wanted}")
        if not inputs.is_floating_point() or inputs.shape[-1:] != (self.in_features,):
            raise ValueError(
                f"inputs are {inputs.dtype} of shape {tuple(inputs.shape)}, but must be {wanted}"
            )
        rows = inputs.detach().reshape(-1, self.in_features).to(self._sum.device)
        if weights is None:
            return rows, torch.ones(len(rows), dtype=torch.float64, device=rows.device)
        if weights.shape != inputs.shape[:-1]:
            raise ValueError(
                f"weights have shape {tuple(weights.shape)}, but must have {tuple(inputs.shape[:-1])}"
            )
        scale = weights.detach().reshape(-1).to(rows.device, torch.float64)
        if not ((scale >= 0) & scale.isfinite()).all():
            bad = scale[~((scale >= 0) & scale.isfinite())][0].item()
            raise ValueError(f"weights hold {bad:g}, but must be finite and not negative")
        return rows[scale > 0], scale[scale > 0]

    def _chunks(
        self, rows: torch.Tensor, scale: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, float]]:
        """Chunks as (√w (x − mean), mean, Σ w), the first in float32 or better, the mean in float64.

        A mean that is large beside the spread would leave nothing of the spread in products of float32.
        """
        dtype = torch.float32 if rows.dtype != torch.float64 and _full_precision() else torch.float64
        for start in range(0, len(rows), CHUNK):
            chunk, weights = rows[start : start + CHUNK].double(), scale[start : start + CHUNK]
            total = float(weights.sum())
            mean = weights @ chunk / total  # (d,)
            yield ((chunk - mean) * weights.sqrt()[:, None]).to(dtype), mean, total

    def merge(self, other: "Moments") -> None:
        """Add what another instance has gathered, as if its batches had been seen here."""
        if other.in_features != self.in_features:
            raise ValueError(f"cannot merge moments of {other.in_features} features into {self.in_features}")
        self._products += other._products.to(self._products.device)
        self._sum += other._sum.to(self._sum.device)
        self._weight += other._weight
        self.count += other.count

    def all_reduce(self) -> None:
        """Add up over all workers of torch.distributed, in place on each; without workers nothing changes."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        totals = torch.tensor([self._weight, self.count], dtype=torch.float64, device=self._sum.device)
        for tensor in (self._products, self._sum, totals):
            torch.distributed.all_reduce(tensor)
        self._weight, self.count = float(totals[0]), int(totals[1])

    @property
    def hessian(self) -> torch.Tensor:
        """(in_features, in_features) float64: 2 Σ w x xᵀ / Σ w."""
        return (self._products + self._products.mT) / self._nonempty_weight()

    @property
    def mean(self) -> torch.Tensor:
        """(in_features,) float64: Σ w x / Σ w."""
        return self._sum / self._nonempty_weight()

    def _nonempty_weight(self) -> float:
        if self.count == 0:
            raise ValueError("no vectors were seen yet; call update first")
        return self._weight


def _full_precision() -> bool:
    """Whether products of float32 are what they say; settings for tf32 or bf16 would show in them."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set for single backends
        return False
