"""Second moments of a layer's inputs, gathered batch by batch."""

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
        self._sum = torch.zeros(in_features, dtype=torch.float64, device=device)  # Σ w x
        self._products = torch.zeros(in_features, in_features, dtype=torch.float64, device=device)  # Σ w x xᵀ

    def __repr__(self) -> str:
        return f"Moments(in_features={self.in_features}, count={self.count})"

    @torch.no_grad()
    def update(self, inputs: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """Add a batch.

        Args:
            inputs: (..., in_features), any float dtype. Products are taken in float32, or in float64 where
                the inputs are, and summed in float64.
            weights: (...), nonnegative; a vector of weight 0, such as padding, is not looked at. Default: 1.

        Raises:
            ValueError: on wrong shapes, negative or non-finite weights, and inputs (or their squares) that
                are not finite. What was gathered before stays as it was.
        """
        if inputs.ndim == 0 or inputs.shape[-1] != self.in_features or not inputs.is_floating_point():
            raise ValueError(
                f"inputs are {inputs.dtype} of shape {tuple(inputs.shape)}, but must be floating point of "
                f"shape (..., {self.in_features})"
            )
        # Lower matmul precision settings (tf32, bf16) would show in the products; float64 has none.
        exact = inputs.dtype == torch.float64 or torch.get_float32_matmul_precision() != "highest"
        device, dtype = self._sum.device, torch.float64 if exact else torch.float32
        rows = inputs.detach().reshape(-1, self.in_features).to(device)  # (n, d)
        scale = torch.ones(len(rows), dtype=torch.float64, device=device)  # (n,)
        if weights is not None:
            if weights.shape != inputs.shape[:-1]:
                raise ValueError(
                    f"weights have shape {tuple(weights.shape)}, but must have {tuple(inputs.shape[:-1])}"
                )
            scale = weights.detach().reshape(-1).to(device, torch.float64)
            if not ((scale >= 0) & scale.isfinite()).all():
                raise ValueError("weights must be finite and not negative")
            rows, scale = rows[scale > 0], scale[scale > 0]
        squares = (rows.to(dtype) * scale.sqrt().to(dtype)[:, None]).square_().sum(0)  # (d,)
        if not squares.isfinite().all():
            bad = int((~squares.isfinite()).sum())
            raise ValueError(
                f"inputs or their squares are nan or inf in {bad} of {self.in_features} features"
            )

        for start in range(0, len(rows), CHUNK):
            root = scale[start : start + CHUNK].sqrt()
            x = rows[start : start + CHUNK].to(dtype) * root.to(dtype)[:, None]  # (n, d): √w x
            self._products += x.mT @ x
            self._sum += root @ x.to(torch.float64)
        self._weight += float(scale.sum())
        self.count += len(rows)

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
