"""Uploading a member to the Hugging Face Hub."""

from pathlib import Path
from typing import TYPE_CHECKING

from ziplm.errors import BadCheckpoint, UsageError, ZipLMError, one_line
from ziplm.results.card import CARD
from ziplm.results.reports import read_report

if TYPE_CHECKING:
    from huggingface_hub import HfApi

NEEDED = ("config.json", "metrics.json", CARD)


def files_of(member: Path) -> list[Path]:
    """Return the files of a member that are uploaded, relative to its folder: all that are not hidden.

    Raises:
        BadCheckpoint: if the folder is not a member of a run.
        BadRun: if its metrics.json is damaged.
    """
    if missing := [name for name in NEEDED if not (member / name).is_file()]:
        raise BadCheckpoint(
            f"{member} is not a member of a run: it has no {missing[0]}",
            "give the folder of one target, such as runs/sst2/2x",
        )
    read_report(member / "metrics.json")
    found = [path.relative_to(member) for path in sorted(member.rglob("*")) if path.is_file()]
    files = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    if not any(path.suffix == ".safetensors" for path in files):
        raise BadCheckpoint(f"{member} has no weights", "give a folder with model.safetensors")
    return files


def check_name(repository: str) -> None:
    """Raise UsageError unless a name is one that the Hub allows for a repository."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UsageError(
            f"{repository!r} is not a name of a repository: {one_line(error)}",
            "give one such as you/model-2x",
        ) from error


def push_member(member: Path, repository: str, *, private: bool = True, api: "HfApi | None" = None) -> str:
    """Upload a member to a repository on the Hub, in one commit; return its address.

    The repository is created if necessary. Files in it that the member does not have are kept.

    Args:
        member: the folder of one target.
        repository: name of the repository, such as ``you/bert-2x``.
        private: whether a new repository is private. An existing one stays as it is.
        api: connection to the Hub; None for one with the user's own login.

    Raises:
        BadCheckpoint: if the folder is not a member of a run.
        UsageError: if the name is not allowed.
        ZipLMError: if the Hub refuses, or cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    files_of(member)
    check_name(repository)
    api = api or HfApi()
    try:
        created = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=created.repo_id,
            folder_path=member,
            ignore_patterns=[".*", "*/.*"],  # the same as in files_of
            commit_message=f"{member.resolve().name}, made by ziplm",
        )
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        raise ZipLMError(
            f"{repository} was not uploaded: {one_line(error)}",
            "check the name and the network, and log in with `hf auth login`",
        ) from error
    return str(created)
