"""Baselines: Algorithm 1 of the paper as written, tuned loops over removals, and plain second moments."""

import torch


def algorithm_1_steps(weight: torch.Tensor, damped_hessian: torch.Tensor, g: int, steps: int) -> list[int]:
    """Follow the paper's Algorithm 1 line by line; return the first `steps` groups that it removes."""
    W, A = weight.clone(), torch.linalg.inv(damped_hessian)
    groups = weight.shape[1] // g
    removed: list[int] = []
    for _ in range(steps):
        gone = torch.tensor(removed, dtype=torch.int64)
        A_blocks = A.view(groups, g, groups, g).diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # (n, g, g)
        A_blocks = A_blocks.index_put((gone,), torch.eye(g, dtype=A.dtype))  # removed: not invertible
        W_blocks = W.view(-1, groups, g).transpose(0, 1)  # (n, r, g)
        scores = (W_blocks @ torch.linalg.inv(A_blocks) * W_blocks).sum((1, 2))
        scores[gone] = torch.inf
        best = int(scores.argmin())
        S = slice(best * g, (best + 1) * g)
        correction = torch.linalg.inv(A[S, S]) @ A[S]
        W = W - W[:, S] @ correction
        A = A - A[:, S] @ correction
        removed.append(best)
    return removed


def tuned_loop(weight: torch.Tensor, damped_hessian: torch.Tensor, shrink: bool = False) -> torch.Tensor:
    """Remove one column at a time in place, by rank-1 updates of A and of Wᵀ, whose rows are contiguous.

    ‖W_j‖² and A_jj, of which the scores consist, are updated instead of recomputed: this takes one product
    with W in each step, and no copy. With `shrink`, the last remaining column moves to the place of the
    removed one, so that later steps work on smaller matrices.
    """
    A = torch.cholesky_inverse(torch.linalg.cholesky(damped_hessian)).mT.contiguous()  # (d, d)
    Wt = weight.mT.contiguous()  # (d, r)
    d = len(A)
    columns = torch.arange(d)
    norms, diagonal = Wt.square().sum(1), A.diagonal().clone()
    order = []
    for n in range(d, 0, -1):
        live = n if shrink else d
        best = int((norms[:live] / diagonal[:live]).argmin())
        pivot = float(diagonal[best])
        a, w = A[best, :live].clone(), Wt[best].clone()
        overlap = Wt[:live] @ w  # (n,)
        norms[:live] -= a * (2 * overlap / pivot - float(overlap[best]) / pivot**2 * a)
        diagonal[:live] -= a * a / pivot
        A[:live, :live].addcmul_(a[:, None], a[None, :], value=-1 / pivot)
        Wt[:live].addcmul_(a[:, None], w[None, :], value=-1 / pivot)
        order.append(int(columns[best]))
        if shrink:
            last = n - 1
            A[best, :n], A[:n, best] = A[last, :n], A[:n, last].clone()
            A[best, best] = A[last, last]
            for tensor in (Wt, norms, diagonal, columns):
                tensor[best] = tensor[last]
        else:
            norms[best], diagonal[best] = torch.inf, 1
    return torch.tensor(order)


def tuned_groups(weight: torch.Tensor, damped_hessian: torch.Tensor, g: int) -> torch.Tensor:
    """Remove one group at a time in place, with the scores of all groups from one batched solve."""
    A = torch.cholesky_inverse(torch.linalg.cholesky(damped_hessian))
    Wt = weight.mT.contiguous()
    groups = len(A) // g
    order: list[int] = []
    A_blocks = A.view(groups, g, groups, g).diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # a view
    for _ in range(groups):
        W_blocks = Wt.view(groups, g, -1)
        scores = (W_blocks * torch.cholesky_solve(W_blocks, torch.linalg.cholesky(A_blocks))).sum((1, 2))
        scores[order] = torch.inf
        best = int(scores.argmin())
        S = slice(best * g, (best + 1) * g)
        rows = torch.linalg.solve_triangular(torch.linalg.cholesky(A[S, S]), A[S], upper=False)  # (g, d)
        removed = torch.linalg.solve_triangular(rows[:, S].mT, Wt[S], upper=False)  # (g, r)
        A.addmm_(rows.mT, rows, alpha=-1)
        Wt.addmm_(rows.mT, removed, alpha=-1)
        A[S, S] = torch.eye(g, dtype=A.dtype)
        order.append(best)
    return torch.tensor(order)


def full_products(batches: list[torch.Tensor], chunk: int = 4096) -> torch.Tensor:
    """Return Σ x xᵀ as version 0.1 computed it.

    Inputs are converted to float64 and centred twice, once to check them, and the full product is computed.
    """
    d = batches[0].shape[1]
    products = torch.zeros(d, d, dtype=torch.float64)
    for rows in batches:
        for check in (True, False):
            for start in range(0, len(rows), chunk):
                part = rows[start : start + chunk].double()
                weights = torch.ones(len(part), dtype=torch.float64)
                mean = weights @ part / len(part)
                centred = ((part - mean) * weights.sqrt()[:, None]).to(rows.dtype)
                if check:
                    assert centred.square().sum(0).isfinite().all()
                else:
                    products += centred.mT @ centred
                    products.addr_(mean, mean, alpha=len(part))
    return products
