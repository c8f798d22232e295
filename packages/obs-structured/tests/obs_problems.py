"""Random pruning problems, and simple reference implementations of Algorithm 1 and of the closed forms."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st


@dataclass
class Problem:
    """Layer with calibration data, all float64."""

    weight: torch.Tensor  # (r, d)
    inputs: torch.Tensor  # (n, d)
    group_size: int
    centred: bool

    @property
    def mean(self) -> torch.Tensor | None:
        return self.inputs.mean(0) if self.centred else None

    @property
    def hessian(self) -> torch.Tensor:
        return 2 * self.inputs.T @ self.inputs / len(self.inputs)

    @property
    def effective_inputs(self) -> torch.Tensor:
        """Inputs (n, d), without the mean if the bias absorbs it."""
        return self.inputs - self.inputs.mean(0) if self.centred else self.inputs

    @property
    def effective_hessian(self) -> torch.Tensor:
        return 2 * self.effective_inputs.T @ self.effective_inputs / len(self.inputs)

    def damped_hessian(self, damping: float) -> torch.Tensor:
        """Return the matrix that `prune` factorises, damped relative to the mean diagonal of live groups."""
        hessian = self.effective_hessian
        diagonal = hessian.diagonal().view(-1, self.group_size)
        free = (diagonal <= 1e-12 * self.hessian.diagonal().view(-1, self.group_size)).all(1)
        absolute = damping * diagonal[~free].mean() if not free.all() else torch.zeros(())
        return hessian + absolute * torch.eye(len(hessian), dtype=torch.float64)

    def error(self, dense_pruned: torch.Tensor) -> torch.Tensor:
        """Return ‖Ŵ X − W X‖² / ‖W X‖² for Ŵ (r, d), computed from the inputs."""
        lost = (dense_pruned - self.weight) @ self.effective_inputs.T
        return lost.square().sum() / (self.weight @ self.inputs.T).square().sum()


def random_problem(
    seed: int,
    rows: int = 8,
    groups: int = 12,
    group_size: int = 1,
    samples: int = 60,
    centred: bool = False,
    flaw: str = "none",
) -> Problem:
    """Make a problem with correlated inputs that have a mean.

    The scales of the columns differ widely. The flaws "dead", "constant" and "duplicate" make some groups
    always zero, constant, or equal to another group. With the flaw "even", all columns have the same scale
    and a mean near zero, so that many removals cost almost the same.
    """
    generator = torch.Generator().manual_seed(seed)
    d = groups * group_size

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sizes = torch.ones(d, dtype=torch.float64) if flaw == "even" else normal(d).exp()
    inputs = normal(samples, d) @ (normal(d, d) / d**0.5) * sizes + (flaw != "even") * normal(d)
    blocks = inputs.view(samples, groups, group_size)  # a view
    if flaw == "dead":
        blocks[:, 1::3] = 0
    elif flaw == "constant":
        blocks[:, 1::3] = 1.5
    elif flaw == "duplicate":
        blocks[:, groups // 2] = blocks[:, 0]
    return Problem(normal(rows, d), inputs, group_size, centred)


def problems(**fixed: object) -> st.SearchStrategy[Problem]:
    """Return a strategy for problems of many shapes, ranks, group sizes and flaws."""
    choices: dict[str, st.SearchStrategy[object]] = {
        "seed": st.integers(0, 2**32 - 1),
        "rows": st.integers(1, 12),
        "groups": st.integers(1, 14),
        "group_size": st.sampled_from([1, 1, 2, 3, 5, 8]),
        "samples": st.integers(2, 80),  # often fewer than columns, so the Hessian is singular
        "centred": st.booleans(),
        "flaw": st.sampled_from(["none", "even", "dead", "constant", "duplicate"]),
    }
    return st.builds(random_problem, **(choices | {name: st.just(value) for name, value in fixed.items()}))


def algorithm_1(weight: torch.Tensor, damped_hessian: torch.Tensor, g: int) -> tuple[list[int], float]:
    """Run Algorithm 1 as the paper states it.

    Returns:
        The order of removal, and the smallest relative gap between the least and the second least cost.
    """
    W, A = weight.clone(), torch.linalg.inv(damped_hessian)
    remaining, order, gap = list(range(weight.shape[1] // g)), [], float("inf")
    while remaining:
        cost = {}
        for s in remaining:
            S = slice(s * g, (s + 1) * g)
            cost[s] = torch.trace(W[:, S] @ torch.linalg.inv(A[S, S]) @ W[:, S].T).item()
        best, *others = sorted(remaining, key=cost.__getitem__)
        if others:
            gap = min(gap, (cost[others[0]] - cost[best]) / cost[others[0]])
        S = slice(best * g, (best + 1) * g)
        correction = torch.linalg.inv(A[S, S]) @ A[S]
        W = W - W[:, S] @ correction
        A = A - A[:, S] @ correction
        remaining.remove(best)
        order.append(best)
    return order, gap


def optimal_weight(weight: torch.Tensor, damped_hessian: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Return the least-squares weights W H[:, S] H[S, S]⁻¹ on the kept columns S, (r, kept)."""
    if not len(kept):
        return weight[:, kept]
    return torch.linalg.solve(damped_hessian[kept][:, kept], (weight @ damped_hessian[:, kept]).T).T


def spread(compact: torch.Tensor, columns: torch.Tensor, width: int) -> torch.Tensor:
    """Return a matrix (r, width) with a compact weight (r, kept) at `columns`, and zeros elsewhere."""
    full = compact.new_zeros(len(compact), width)
    full[:, columns] = compact
    return full
