"""The command push; the Hub is replaced by a recorder, and nothing is uploaded."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from click.testing import CliRunner, Result
from huggingface_hub import RepoUrl
from huggingface_hub.errors import OfflineModeIsEnabled
from ziplm.cli import main
from ziplm.files import write_json
from ziplm.results.card import write_card
from ziplm_reports import made_up_report

FILES = ["README.md", "config.json", "metrics.json", "model.safetensors", "onnx/model.onnx"]


class RecordedHub:
    """Takes the place of `huggingface_hub.HfApi`."""

    calls: list[tuple[str, dict[str, Any]]]

    def create_repo(self, repo_id: str, **options: Any) -> RepoUrl:
        self.calls.append(("create_repo", {"repo_id": repo_id, **options}))
        return RepoUrl(f"https://huggingface.co/{repo_id}")

    def upload_folder(self, **options: Any) -> None:
        self.calls.append(("upload_folder", options))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[RecordedHub]:
    RecordedHub.calls = []
    monkeypatch.setattr(huggingface_hub, "HfApi", RecordedHub)
    return RecordedHub


@pytest.fixture
def member(tmp_path: Path) -> Path:
    folder = tmp_path / "2x"
    report = made_up_report(2.0)
    write_json(folder / "metrics.json", report)
    (folder / "config.json").write_text('{"architectures": ["ZipBertModel"]}')
    (folder / "model.safetensors").write_bytes(b"0" * 2000)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"0")
    for name in (".secret", "onnx/.secret"):
        (folder / name).write_text("token")
    write_card(folder, report, "you/bert", "sst2")
    return folder


def push(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["push", *map(str, arguments)])


def test_a_dry_run_lists_the_files_and_calls_nobody(member: Path, hub: type[RecordedHub]) -> None:
    result = push(member, "you/bert-2x", "--dry-run")
    assert result.exit_code == 0, result.output
    *files, last = result.stdout.splitlines()
    assert [line.split()[0] for line in files] == FILES
    assert "model.safetensors  2 kB" in files
    assert last.endswith("to you/bert-2x (private if it is new)")
    assert hub.calls == []


def test_a_member_is_uploaded_to_a_private_repository(member: Path, hub: type[RecordedHub]) -> None:
    result = push(member, "you/bert-2x")
    assert (result.exit_code, result.stdout) == (0, "https://huggingface.co/you/bert-2x\n")
    (_, created), (_, uploaded) = hub.calls
    assert created == {"repo_id": "you/bert-2x", "private": True, "exist_ok": True}
    assert uploaded["folder_path"] == member
    kept = huggingface_hub.utils.filter_repo_objects(
        [path.relative_to(member).as_posix() for path in sorted(member.rglob("*")) if path.is_file()],
        ignore_patterns=uploaded["ignore_patterns"],
    )
    assert list(kept) == FILES  # what the dry run lists


def test_a_public_repository_must_be_asked_for(member: Path, hub: type[RecordedHub]) -> None:
    assert push(member, "you/bert-2x", "--public").exit_code == 0
    assert hub.calls[0][1]["private"] is False


@pytest.mark.parametrize("missing", ["config.json", "metrics.json", "README.md", "model.safetensors"])
def test_a_folder_that_is_not_a_member_is_refused(member: Path, hub: type[RecordedHub], missing: str) -> None:
    (member / missing).unlink()
    for more in ((), ("--dry-run",)):
        result = push(member, "you/bert-2x", *more)
        assert result.exit_code == 4
        assert len(result.stderr.splitlines()) == 1
    assert hub.calls == []


def test_a_foreign_report_is_refused(member: Path, hub: type[RecordedHub]) -> None:
    (member / "metrics.json").write_text("{}")
    assert push(member, "you/bert-2x").exit_code == 5
    assert hub.calls == []


@pytest.mark.parametrize("name", ["a/b/c", "you/bert 2x", "", "-x/y"])
def test_a_name_that_the_hub_refuses_is_refused_at_once(
    member: Path, hub: type[RecordedHub], name: str
) -> None:
    result = push(member, "--dry-run", "--", name)
    assert result.exit_code == 2, result.output
    assert hub.calls == []


def test_a_hub_that_cannot_be_reached_is_one_line(member: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OfflineModeIsEnabled("Cannot reach the hub: offline mode is enabled.")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    result = push(member, "you/bert-2x")
    assert result.exit_code == 1
    assert "you/bert-2x was not uploaded: Cannot reach the hub" in result.stderr
    assert "hf auth login" in result.stderr
    assert len(result.stderr.splitlines()) == 1
