"""Token weights and selection metric of a fisher, and its file."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ziplm import BadRun
from ziplm.stages.calibrate import gather_fisher
from ziplm.stages.fisher import Fisher
from ziplm_pipeline import ARCHITECTURES, lively_model, samples, task_for


def fisher_with(squares: torch.Tensor, gamma: torch.Tensor | None = None) -> Fisher:
    return Fisher({"m": torch.eye(3) if gamma is None else gamma}, {"m": squares})


@given(st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=60), st.integers(1, 200))
def test_token_weights_are_proportional_to_squared_gradients_above_a_floor(
    values: list[float], columns: int
) -> None:
    squares = torch.tensor(values)
    weights, effective = fisher_with(squares).token_weights("m", columns)
    if weights is None:
        assert effective == len(values)
        mean = squares.double().mean()
        if mean > 0:
            w = 0.9 * squares.double() / mean + 0.1
            assert int(w.sum() ** 2 / w.square().sum()) < 0.25 * columns
        return
    assert 0.25 * columns <= effective <= len(values)
    assert float(weights.mean()) == pytest.approx(1)
    assert float(weights.min()) >= 0.1 - 1e-12
    others = weights - 0.1  # the rest is in proportion to the squares
    torch.testing.assert_close(others * squares.double().sum(), squares.double() * others.sum())


def test_there_are_no_weights_if_few_tokens_outweigh_all_others() -> None:
    squares = torch.ones(1000)
    even, effective = fisher_with(squares).token_weights("m", 100)
    assert even is not None
    assert torch.equal(even, torch.ones(1000, dtype=torch.float64))
    assert effective == 1000
    squares[0] = 1e9
    assert fisher_with(squares).token_weights("m", 100) == (None, 1000)
    assert fisher_with(torch.zeros(5)).token_weights("m", 1) == (None, 5)


def test_the_selection_metric_is_gamma_with_a_share_of_the_identity() -> None:
    root = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gamma = 7 * root @ root.T
    chosen = fisher_with(torch.ones(1), gamma).selection_matrix("m")
    expected = 0.9 * gamma / (gamma.trace() / 3) + 0.1 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(chosen, expected)
    assert float(chosen.trace() / 3) == pytest.approx(1)
    assert torch.linalg.eigvalsh(chosen).min() > 0.09
    assert torch.equal(fisher_with(torch.ones(1), torch.zeros(3, 3)).selection_matrix("m"), torch.eye(3))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_saved_fisher_loads_unchanged(tmp_path: Path, name: str) -> None:
    model = lively_model(name)
    fisher = gather_fisher(model, task_for(name), samples(name, 4))
    path = tmp_path / "state" / "fisher.safetensors"
    fisher.save(path)
    loaded = Fisher.load(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    for kind in ("gamma", "squares"):
        before, after = getattr(fisher, kind), getattr(loaded, kind)
        assert sorted(before) == sorted(after)
        assert all(torch.equal(before[own], after[own]) for own in before)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"x" * 100])
def test_a_damaged_fisher_file_is_reported(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "fisher.safetensors"
    fisher_with(torch.ones(5)).save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadRun, match=r"fisher.safetensors is damaged; delete it"):
        Fisher.load(path)
