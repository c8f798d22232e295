"""Narrower attention heads: the queries and keys, whose products are the scores.

Symbols, for one head of size d: the score of query q and key k is qᵀk. With P_q and P_k (r, d), narrower
heads have the queries P_q q and keys P_k k, so the score changes by qᵀ ΔB k, where ΔB = P_qᵀP_k − I.
S_q = E[q qᵀ], and S_k − μ_k μ_kᵀ is the covariance of the keys: a part of a score that is the same for all
keys does not matter to the softmax. Γ_q and Γ_k are the second moments of the loss gradients at q and k.

With L and R the matrices that say which directions of q and of k matter, and L^½ R^½ = U Σ Vᵀ,

    P_q = Σ_r^½ U_rᵀ L^-½    and    P_k = Σ_r^½ V_rᵀ R^-½

minimise tr(L ΔB R ΔBᵀ) for every width r, and P_qᵀP_k = I at full width. L is the sum of S_q and Γ_k, and R
that of Γ_q and the covariance of the keys, each divided by its mean diagonal: an error of the scores matters
where queries and keys are, and where the loss depends on them.
"""

import os
from pathlib import Path

import torch

from obs_structured import _checks, _files, _width_files
from obs_structured._projection import project_rows
from obs_structured._threads import threads_for

DAMPING = 1e-3  # relative to the mean diagonal of L and of R
SHARE = 0.9  # of Γ, whose rest is spread over all directions, because it is estimated from few gradients


@torch.no_grad()
def narrow_scores(
    queries: torch.Tensor,
    keys: torch.Tensor,
    key_mean: torch.Tensor | None = None,
    query_fisher: torch.Tensor | None = None,
    key_fisher: torch.Tensor | None = None,
    damping: float = DAMPING,
) -> "ScoreTrace":
    """Make the queries and keys of attention heads narrower, changing the scores as little as possible.

    This holds for scores that are products of queries and keys, so not with rotary embeddings in between.

    Args:
        queries: S_q, (heads, d, d): second moments Σ w q qᵀ / Σ w of each head's queries, biases included,
            before the scaling. Tokens may have any weights w.
        keys: S_k, (heads, d, d): second moments of the keys.
        key_mean: μ_k, (heads, d): means of the keys. Default: zero.
        query_fisher: Γ_q, (heads, d, d): second moments of the loss gradients at the queries. Default: all
            scores count alike.
        key_fisher: Γ_k, (heads, d, d), likewise at the keys. Default: none.
        damping: value added to the diagonals of L and R, relative to their means; from 0 to 1e6.

    Returns:
        A `ScoreTrace`, from which every width can be read.

    Raises:
        ValueError: if a tensor has a wrong shape, is not finite, not symmetric or not positive semidefinite,
            if the damping is out of range, or if the errors overflow.
    """
    _checks.finite_tensor("queries", queries, 3)
    heads, size = queries.shape[:2]
    square = (heads, size, size)
    if not (_checks.is_real(damping) and 0 <= damping <= 1e6):
        raise ValueError(f"damping is {_checks.shortened(damping)}, but must be between 0 and 1e+06")
    if key_mean is not None:
        _checks.finite_tensor("key_mean", key_mean, (heads, size))
    device = torch.device("cpu") if queries.device.type == "mps" else queries.device
    S_q = _semidefinite("queries", queries, square, device)
    S_k = _semidefinite("keys", keys, square, device)
    if key_mean is not None:
        mean = key_mean.detach().to(S_k)
        S_k = _semidefinite(
            "keys - key_mean key_mean.T", S_k - mean[:, :, None] * mean[:, None, :], square, device
        )
    G_q = None if query_fisher is None else _semidefinite("query_fisher", query_fisher, square, device)
    G_k = None if key_fisher is None else _semidefinite("key_fisher", key_fisher, square, device)
    with threads_for(0):
        L = _normed(S_q) + (0 if G_k is None else _normed(_spread(G_k)))
        R = _normed(S_k) + (0 if G_q is None else _normed(_spread(G_q)))
        query, key = _projections(L, R, damping)
        errors = _errors(query, key, S_q, S_k if G_q is None else G_q)
    if not errors.isfinite().all():
        raise ValueError("the errors of the scores overflow; divide queries, keys or gradients by a constant")
    return ScoreTrace(query, key, errors)


class ScoreTrace:
    """All widths of the queries and keys of one attention.

    Score traces are created by `narrow_scores` and `ScoreTrace.load`.
    """

    def __init__(self, query: torch.Tensor, key: torch.Tensor, errors: torch.Tensor) -> None:
        self._query = query  # (heads, d, d) float64: P_q at full width; its first r rows at width r
        self._key = key  # (heads, d, d) float64: P_k, likewise
        self._errors = errors  # (heads, d + 1) float64: by width

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self._query.shape[0]

    @property
    def head_size(self) -> int:
        """Width of the original heads."""
        return self._query.shape[1]

    def __repr__(self) -> str:
        return f"ScoreTrace({self.heads} heads of {self.head_size})"

    def errors(self, width: int) -> torch.Tensor:
        """Return the error of each head's scores at a width, float64 (heads,).

        It is tr(S_q ΔB Γ_q ΔBᵀ): the mean square of the first-order change of the loss, if queries and the
        gradients at queries are independent. Without Γ_q, it is the mean square of the change of the scores.
        """
        self._check_width(width)
        return self._errors[:, width].clone()

    def first_order(self, queries: torch.Tensor, gradients: torch.Tensor, width: int) -> torch.Tensor:
        """Return the first-order change of a loss by each head's narrower scores.

        Args:
            queries: q, (..., tokens, heads, head_size): queries, biases included, before the scaling.
            gradients: (..., tokens, heads, head_size): gradients of the loss at the queries.
            width: width of the heads.

        Returns:
            float32 (..., heads): the sum of qᵀ ΔB g over tokens, which is that of the gradients at the scores
            times the changes of the scores, since g is the sum of keys times gradients at the scores.

        Raises:
            ValueError: if a shape does not match, or a value is not finite.
        """
        self._check_width(width)
        _checks.finite_tensor("queries", queries, (*queries.shape[:-2], self.heads, self.head_size))
        _checks.finite_tensor("gradients", gradients, tuple(queries.shape))
        q = queries.detach().to(self._query.device, torch.float32)
        g = gradients.detach().to(q)
        missing = [
            torch.einsum("...hd,hrd->...hr", given, projections[:, width:].to(q))
            for given, projections in ((q, self._query), (g, self._key))
        ]
        return -(missing[0] * missing[1]).sum((-3, -1))

    def project_queries(
        self, rows: torch.Tensor, width: int, kept: torch.Tensor | None = None, *, scaled: bool = True
    ) -> torch.Tensor:
        """Return the rows of the query projection, or its bias, at this width.

        Args:
            rows: (heads * head_size, …), any float dtype: Wq, or bq.
            width: width of the heads.
            kept: int64: heads to keep. Default: all.
            scaled: whether to multiply by √(width / head_size), which makes up for attention that divides
                scores by √width instead of √head_size. False if the attention does not scale by the width.

        Returns:
            (kept heads * width, …) in the dtype of `rows`.
        """
        factor = (width / self.head_size) ** 0.5 if scaled else 1.0
        return self._projected(self._query * factor, rows, width, kept)

    def project_keys(self, rows: torch.Tensor, width: int, kept: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rows of the key projection, or its bias, at this width; see `project_queries`."""
        return self._projected(self._key, rows, width, kept)

    def _projected(
        self, projections: torch.Tensor, rows: torch.Tensor, width: int, kept: torch.Tensor | None
    ) -> torch.Tensor:
        self._check_width(width)
        if kept is None:
            kept = torch.arange(self.heads, device=projections.device)
        return project_rows(projections[kept, :width], rows, self.heads, kept)

    def _check_width(self, width: int) -> None:
        if type(width) is not int or not 1 <= width <= self.head_size:
            raise ValueError(f"the width is {width!r}, but must be an integer from 1 to {self.head_size}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a safetensors file; see `Trace.save`."""
        tensors = {"query": self._query, "key": self._key, "errors": self._errors}
        _files.write(
            Path(path), _width_files.SCORES, {name: one.contiguous() for name, one in tensors.items()}, {}
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> "ScoreTrace":
        """Read a trace that `save` has written; see `Trace.load`."""
        arguments = _files.read(
            path,
            _width_files.SCORES,
            "score trace",
            device,
            _width_files.check_scores,
            _width_files.decode_scores,
        )
        return cls(**arguments)


def _semidefinite(
    name: str, matrices: torch.Tensor, shape: tuple[int, int, int], device: torch.device
) -> torch.Tensor:
    """Return checked matrices (heads, d, d) as float64, exactly symmetric."""
    _checks.finite_tensor(name, matrices, shape)
    exact = matrices.detach().to(device, torch.float64)
    exact = torch.stack([_checks.symmetrised(name, matrix) for matrix in exact])
    for eigenvalues in torch.linalg.eigvalsh(exact):
        _checks.semidefinite_spectrum(name, float(eigenvalues[0]), float(eigenvalues[-1]))
    return exact


def _mean_diagonal(matrices: torch.Tensor) -> torch.Tensor:
    """Return the mean diagonal of matrices (heads, d, d) as (heads, 1, 1), or 1 where it is 0."""
    mean = matrices.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    return torch.where(mean > 0, mean, 1.0)


def _normed(matrices: torch.Tensor) -> torch.Tensor:
    """Return matrices (heads, d, d) divided by their mean diagonal."""
    return matrices / _mean_diagonal(matrices)


def _identity(like: torch.Tensor) -> torch.Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def _spread(fisher: torch.Tensor) -> torch.Tensor:
    """Return Γ (heads, d, d) with a tenth of it spread evenly over all directions."""
    return SHARE * fisher + (1 - SHARE) * _mean_diagonal(fisher) * _identity(fisher)


def _projections(L: torch.Tensor, R: torch.Tensor, damping: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return P_q and P_k at full width, (heads, d, d) each."""
    (L_root, L_inverse), (R_root, R_inverse) = (_roots(matrices, damping) for matrices in (L, R))
    U, S, Vt = torch.linalg.svd(L_root @ R_root)
    S_root = S.sqrt()[:, :, None]
    return S_root * (U.mT @ L_inverse), S_root * (Vt @ R_inverse)


def _roots(matrices: torch.Tensor, damping: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the square root of damped matrices (heads, d, d), and its inverse."""
    eigenvalues, vectors = torch.linalg.eigh(
        matrices + damping * _mean_diagonal(matrices) * _identity(matrices)
    )
    roots = eigenvalues.clamp(min=1e-12 * float(_mean_diagonal(matrices).max())).sqrt()[:, None, :]
    return (vectors * roots) @ vectors.mT, (vectors / roots) @ vectors.mT


def _errors(query: torch.Tensor, key: torch.Tensor, S: torch.Tensor, G: torch.Tensor) -> torch.Tensor:
    """Return tr(S ΔB G ΔBᵀ) for every width from 0 to d, (heads, d + 1)."""
    size = query.shape[1]
    errors = []
    for width in range(size + 1):
        # From the trailing parts, which are exactly what is missing: no cancellation at large widths.
        missing = query[:, width:].mT @ key[:, width:]  # (heads, d, d): −ΔB
        errors.append(((S @ missing @ G) * missing).sum((1, 2)).clamp(min=0))
    return torch.stack(errors, dim=1)
