"""Quick exports to ONNX: torch's table of operators is built once for all of them.

`torch.onnx.export` parses the source code of some 500 operators at every call, which is 70 % of the time that
the export of a transformer block takes. A latency table exports one module for each size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_built: dict[object, Any] = {}


@contextlib.contextmanager
def shared_operators() -> Iterator[None]:
    """Let `torch.onnx.export` reuse the operators of earlier exports of this process.

    Exports inside must not add operators of their own (`custom_translation_table`), which later ones would
    find. This relies on a private class of torch; where that is not as expected, exports are slow as usual.
    """
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        original = vars(ONNXRegistry)["from_torchlib"]
        build = ONNXRegistry.from_torchlib
    except (ImportError, KeyError, AttributeError):
        yield
        return

    def reuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        key = (args, tuple(sorted(kwargs.items())))
        if key not in _built:
            _built[key] = build(*args, **kwargs)
        return _built[key]

    ONNXRegistry.from_torchlib = classmethod(reuse)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ONNXRegistry.from_torchlib = original  # type: ignore[method-assign]
