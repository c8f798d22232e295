"""The blocked factorisation gives the same results as LAPACK."""

import obs_structured._factor as factor
import pytest
import torch


def positive_definite(size: int) -> torch.Tensor:
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    return root @ root.T + 0.1 * torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 31])
def test_factor_and_inverse_match_lapack(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factor, "BLOCK", 8)
    matrix = positive_definite(size)
    lower = matrix.clone()
    assert factor.cholesky_(lower)
    torch.testing.assert_close(lower.tril(), torch.linalg.cholesky(matrix), rtol=1e-10, atol=1e-12)
    factor.invert_triangle_(lower)
    torch.testing.assert_close(
        lower.tril() @ torch.linalg.cholesky(matrix), torch.eye(size, dtype=torch.float64)
    )
    inverse = factor.inverse_(matrix.clone())
    assert inverse is not None
    torch.testing.assert_close(inverse @ matrix, torch.eye(size, dtype=torch.float64))


@pytest.mark.parametrize("row", [0, 9, 30])
def test_an_indefinite_matrix_has_no_inverse(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factor, "BLOCK", 8)
    matrix = positive_definite(31)
    matrix[row, row] = -1
    assert factor.inverse_(matrix) is None
