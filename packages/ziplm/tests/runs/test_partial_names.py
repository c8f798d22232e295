"""All five packages write files under temporary names with the same suffix, and make them durable."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obs_structured
import pytest
import spdy_search
import torch
from ziplm.files import PARTIAL, folder_written_whole, write_json, write_tensors
from ziplm_pipeline import linear_table

NAME = re.compile(r"\..+\.[0-9a-f]{32}\.ziplm-partial")


def a_trace(path: Path) -> None:
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    obs_structured.prune(weight, torch.eye(4, dtype=torch.float64)).save(path)


def a_search(path: Path) -> None:
    problem = spdy_search.Problem([[2.0, 1.0]] * 2, [[0.0, 1.0]] * 2, 3.0)
    spdy_search.search(problem, lambda levels: float(sum(levels)), evaluations=3, checkpoint=path)


def teacher_logits(path: Path) -> None:
    from token_distill._cache import LogitsCache

    LogitsCache(path.parent, "teacher").write({"a": (torch.ones(2),)})


def a_folder(path: Path) -> None:
    with folder_written_whole(path) as temporary:
        (temporary / "weights").write_text("x")


WRITERS: dict[str, Callable[[Path], None]] = {
    "ziplm json": lambda path: write_json(path, {}),
    "ziplm tensors": lambda path: write_tensors(path, {"a": torch.ones(2)}),
    "ziplm folder": a_folder,
    "latency-profiler": lambda path: linear_table().save(path),
    "obs-structured": a_trace,
    "spdy-search": a_search,
    "token-distill": teacher_logits,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_files_are_renamed_from_partial_names_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    renamed: list[str] = []
    synced: list[str] = []

    def watched(function: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **more: Any) -> Any:
            note(first)
            return function(first, *rest, **more)

        return call

    def note_rename(path: Any) -> None:
        renamed.extend(part for part in Path(path).relative_to(tmp_path).parts if part.startswith("."))

    monkeypatch.setattr(os, "replace", watched(os.replace, note_rename))
    monkeypatch.setattr(os, "rename", watched(os.rename, note_rename))
    place = Path("/proc/self/fd")
    note_sync = watched(os.fsync, lambda file: synced.append(str((place / str(file)).readlink())))
    monkeypatch.setattr(os, "fsync", note_sync)
    WRITERS[writer](tmp_path / "made.json")
    assert renamed
    assert all(NAME.fullmatch(name) for name in renamed), renamed
    assert any(PARTIAL in path for path in synced), "the file is not synced"
    assert str(tmp_path) in synced, "the folder is not synced"
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(PARTIAL)]
