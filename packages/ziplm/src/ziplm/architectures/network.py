"""Check whether the hub can be reached: without a network, its client retries for half a minute."""

import functools
import threading
from pathlib import Path
from typing import Any

import huggingface_hub

PATIENCE = 4.0  # seconds to wait for the hub's first answer


def from_hub(path: str | Path) -> dict[str, Any]:
    """Return options for `from_pretrained` that use only the local cache if the hub does not answer."""
    return {} if Path(path).is_dir() or _answers() else {"local_files_only": True}


@functools.cache
def _answers() -> bool:
    return not huggingface_hub.constants.HF_HUB_OFFLINE and hub_answers()


def hub_answers() -> bool:
    """Return whether the hub answers within `PATIENCE` seconds. It uses the same client as downloads."""
    answers = []

    def ask() -> None:
        try:
            answers.append(
                huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=PATIENCE)
            )
        except Exception:  # any failure means no answer; the exceptions differ between client versions
            return

    # In a thread, because resolving a host name has no time limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return bool(answers)
