"""Statistics of a branch: moments of the inputs of its output matrix, and of the residual stream after it."""

from dataclasses import dataclass

import torch
from obs_structured import Moments
from torch import nn


@dataclass
class BranchStatistics:
    """Statistics of one branch over the calibration samples.

    Attributes:
        moments: moments of the inputs of its output matrix.
        inverse_variance: mean over tokens of 1 / variance of the residual stream after the branch.
        spread: variance over tokens of the normalised residual stream, summed over dimensions.
    """

    moments: Moments
    inverse_variance: float = 0.0
    spread: float = 0.0


class StreamSums:
    """Sums over tokens of the residual stream, as the stream prior needs them.

    Args:
        centred: whether norms subtract the mean of the stream (LayerNorm), or only scale it (RMSNorm).
    """

    def __init__(self, centred: bool = True) -> None:
        self.centred = centred
        self.inverse, self.count = 0.0, 0
        self.total: torch.Tensor | float = 0.0
        self.squares: torch.Tensor | float = 0.0

    def add(self, stream: torch.Tensor, norm: nn.Module | None) -> None:
        """Add the streams of some tokens, (tokens, hidden) in float64."""
        if self.centred:
            stream = stream - stream.mean(-1, keepdim=True)
        variance = stream.square().mean(-1)
        varies = variance >= 1e-12  # a constant stream carries no information, and would divide by zero
        stream, inverse = stream[varies], 1 / variance[varies]
        normalised = stream * inverse.sqrt()[:, None]
        if norm is not None and isinstance(norm.weight, torch.Tensor):
            normalised = normalised * norm.weight.double()
        self.inverse += float(inverse.sum())
        self.count += len(stream)
        self.total = self.total + normalised.sum(0).cpu()
        self.squares = self.squares + normalised.square().sum(0).cpu()

    def merge(self, other: "StreamSums") -> None:
        """Add the sums of another process."""
        self.inverse += other.inverse
        self.count += other.count
        self.total = self.total + other.total
        self.squares = self.squares + other.squares

    def result(self) -> tuple[float, float]:
        """Return the mean of 1/σ², and the summed variance of the normalised stream."""
        if not self.count:
            return 0.0, 0.0
        assert isinstance(self.total, torch.Tensor)
        variance = self.squares / self.count - (self.total / self.count).square()
        return self.inverse / self.count, float(variance.sum())
