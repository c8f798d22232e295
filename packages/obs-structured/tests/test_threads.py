"""Small linear algebra runs on one thread; the caller's number of threads is left as it was."""

from collections.abc import Iterator
from typing import Any

import obs_structured._moments as moments_module
import obs_structured._solve as solving
import pytest
import torch
from obs_problems import random_problem
from obs_structured import Moments, prune
from obs_structured._threads import LARGE, product_of_block, threads_for


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_few_operations_get_one_thread_and_many_keep_theirs() -> None:
    with threads_for(LARGE / 2):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with threads_for(LARGE):
        assert torch.get_num_threads() == 2


def test_an_error_restores_the_number_of_threads() -> None:
    with pytest.raises(KeyError), threads_for(0):
        raise KeyError
    with pytest.raises(ValueError, match="weight has shape"):
        prune(torch.ones(3), torch.eye(3))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("group_size", [1, 8])
def test_the_elimination_uses_one_thread_even_if_the_matrix_is_large(
    monkeypatch: pytest.MonkeyPatch, group_size: int
) -> None:
    seen: dict[str, int] = {}

    def noting(name: str) -> Any:
        function = getattr(solving, name)

        def noted(*arguments: Any) -> Any:
            seen[name] = torch.get_num_threads()
            return function(*arguments)

        return noted

    monkeypatch.setattr("obs_structured._threads.LARGE", 1.0)  # every product counts as large
    for name in ("eliminate", "inverse_"):
        monkeypatch.setattr(solving, name, noting(name))
    problem = random_problem(0, groups=20, group_size=group_size, samples=400)
    prune(problem.weight, problem.hessian, group_size)
    assert seen == {"eliminate": 1, "inverse_": 2}
    assert torch.get_num_threads() == 2


def test_small_batches_are_added_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    chunks_of = moments_module.chunks_of

    def noted(*arguments: Any) -> Any:
        seen.append(torch.get_num_threads())
        return chunks_of(*arguments)

    monkeypatch.setattr("obs_structured._threads.LARGE", 1e9)
    monkeypatch.setattr(moments_module, "chunks_of", noted)
    for width in (4, 1024):
        Moments(width).update(torch.zeros(2048, width))
    assert seen == [1, 2]


def test_the_operations_follow_the_shape() -> None:
    large, usual = torch.empty(8192, 8192, device="meta"), torch.empty(1024, 4096, device="meta")
    assert product_of_block(large) > LARGE > product_of_block(usual)
    assert product_of_block([[1.0]]) == 0
