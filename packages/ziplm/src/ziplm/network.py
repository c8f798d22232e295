"""Whether the hub can be reached: without a network, its client would retry for half a minute."""

import functools
import threading
from pathlib import Path
from typing import Any

import huggingface_hub

PATIENCE = 4.0  # seconds to wait for the hub's first answer


def from_hub(path: str | Path) -> dict[str, Any]:
    """Options for `from_pretrained`: where the hub does not answer, names are looked for in the cache."""
    return {} if Path(path).is_dir() or _answers() else {"local_files_only": True}


@functools.cache
def _answers() -> bool:
    return not huggingface_hub.constants.HF_HUB_OFFLINE and hub_answers()


def hub_answers() -> bool:
    """Whether the hub gives any answer soon; it is asked the way it will be asked for data, by any proxy."""
    answers = []

    def ask() -> None:
        try:
            answers.append(
                huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=PATIENCE)
            )
        except Exception:  # whatever it is, and the client's exceptions differ by version: no answer
            return

    # In a thread because looking up the name of a host has no time limit of its own.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return bool(answers)
