"""Optional packages: which extra of this package installs them, and what a user reads if they are missing."""

from importlib.metadata import version
from importlib.util import find_spec

from latency_profiler._errors import MissingExtra

EXTRAS = {
    "plot": ("matplotlib",),
    "onnxruntime": ("onnx", "onnxruntime", "onnxscript"),
    "openvino": ("openvino", "nncf"),
}
"""Packages of each extra, as in pyproject.toml."""


def require_extra(extra: str) -> None:
    """Raise MissingExtra with the pip command unless all packages of an extra are installed."""
    missing = [package for package in EXTRAS[extra] if find_spec(package) is None]
    if missing:
        purpose = "plots need" if extra == "plot" else f"the engine {extra} needs"
        raise MissingExtra(
            f"{purpose} {' and '.join(missing)}", f"run: pip install 'latency-profiler[{extra}]'"
        )


def versions_of(*packages: str) -> dict[str, str]:
    """Return the installed version of each package."""
    return {package: version(package) for package in packages}
