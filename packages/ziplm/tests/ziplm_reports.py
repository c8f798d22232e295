"""Run folders with made-up results of a BERT-base, to be read by reports; nothing is computed or measured."""

import json
import math
from pathlib import Path
from typing import Any

from latency_profiler import Environment, LatencyCurve, LatencyTable
from ziplm.files import write_json

DENSE = 0.9243
HEADS, WIDTH, LAYERS = 12, 3072, 12

ENVIRONMENT: dict[str, Any] = {
    "device": "cpu",
    "device_name": "Intel(R) Xeon(R) Platinum 8488C",
    "capability": "AVX512",
    "cores": 8,
    "system": "Linux x86_64",
    "threads": 1,
    "dtype": "float32",
    "engine": "eager",
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "clock": "wall",
    "batch_size": 8,
    "sequence_length": 128,
    "details": {"attention": "sdpa", "regime": "throughput"},
    "load_average": 0.4,
}


def made_up_report(speedup: float, **changes: Any) -> dict[str, Any]:
    """Return the report of a member that is a little faster than asked for."""
    accuracy = DENSE - 0.004 * (speedup - 1) ** 1.3
    keep = 1 / speedup**1.25
    layers = range(LAYERS)
    heads = [round(HEADS * min(1, keep * (1.7 - 0.11 * layer))) if layer < 10 else 0 for layer in layers]
    widths = [round(WIDTH * min(1, keep * (1.5 - 0.09 * layer))) for layer in layers]
    measured = speedup * 1.008
    report: dict[str, Any] = {
        "target": {"name": f"{speedup:g}x", "kind": "speedup", "value": speedup},
        "measured": {
            "speedup": measured,
            "low": measured * 0.988,
            "high": measured * 1.013,
            "seconds": 0.21 / measured,
            "dense_seconds": 0.21,
        },
        "predicted": {"seconds": 0.21 / speedup / 1.03, "speedup": speedup * 1.03},
        "metric": {
            "name": "accuracy",
            "dense": DENSE,
            "compressed": accuracy,
            "greater_is_better": True,
            "dense_interval": [DENSE - 0.019, DENSE + 0.016],
            "interval": [accuracy - 0.02, accuracy + 0.017],
            "difference_interval": [accuracy - DENSE - 0.008, accuracy - DENSE + 0.008],
        },
        "sizes": {"attention": heads, "ffn": widths},
        "dense_sizes": {"attention": HEADS, "ffn": WIDTH},
        "parameters": {"all": int(24e6 + 85e6 * keep), "layers": int(85e6 * keep)},
        "dense_parameters": {"all": int(109e6), "layers": int(85e6)},
        "search": {"evaluations": 100},
        "environment": ENVIRONMENT,
        "versions": {"ziplm": "0.2.0", "torch": "2.13.0", "transformers": "5.22.2", "python": "3.11.7"},
        "seed": 0,
        "command": "ziplm compress textattack/bert-base-uncased-SST-2 --task sst2 --speedup 2 -o runs/sst2",
        "seconds": {"calibrate": 93.1, "prune": 411.0, "search": 1830.5, "measure": 60.2, "evaluate": 71.0},
        "bytes_on_disk": int(4 * (24e6 + 85e6 * keep)),
    }
    return {**report, **changes}


def training(target: int, steps: int = 600) -> dict[str, Any]:
    """Return the summary of the training after the target with this number."""
    losses = [
        [step, 0.3 * (1 + target) * math.exp(-step / 180) + 0.04 + 0.01 * math.sin(step / 11)]
        for step in range(12, steps + 1, 12)
    ]
    return {"steps": steps, "epochs": 2.0, "examples": 32 * steps, "seconds": 900.0, "losses": losses}


def made_up_table() -> LatencyTable:
    """Return a latency table whose times fall with size."""
    heads = tuple(range(HEADS, -1, -1))
    widths = (*(int(WIDTH * 0.9**step) for step in range(0, 43, 3)), 0)

    def curve(sizes: tuple[int, ...], start: float, slope: float) -> LatencyCurve:
        return LatencyCurve(sizes, tuple(1e-3 * (start + slope * size) if size else 1e-5 for size in sizes))

    curves = {"attention": curve(heads, 0.4, 0.62), "ffn": curve(widths, 0.3, 0.0033)}
    return LatencyTable(Environment.from_dict(ENVIRONMENT), 4e-3, curves)


def write_run(
    folder: Path,
    speedups: tuple[float, ...] = (1.5, 2, 3, 4, 6),
    gradual: bool = False,
    alternatives: list[dict[str, Any]] | None = None,
    model: str = "textattack/bert-base-uncased-SST-2",
    **changes: Any,
) -> Path:
    """Write a run folder with these targets; return it. `changes` replace values of all reports."""
    folder.mkdir(parents=True)
    mode = "gradual" if gradual else "oneshot"
    options = {"model": model, "task": "sst2", "mode": mode, "loss": "kl", "seed": 0}
    options |= {"logit_weight": 1.0, "token_weight": 0.5}
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    (folder / "config.toml").write_text("\n".join(lines), encoding="utf-8")
    for index, speedup in enumerate(speedups):
        report = made_up_report(speedup, **changes)
        if gradual:
            report["training"] = training(index)
        write_json(folder / report["target"]["name"] / "metrics.json", report)
        losses = [0.02 * speedup * (0.35 + math.exp(-step / 25) * (1 + step % 7 / 9)) for step in range(100)]
        evaluations = [[[0], loss, 0.0] for loss in losses]
        search = folder / "state" / "targets" / report["target"]["name"] / "search.json"
        write_json(search, {"format": 1, "evaluations": evaluations})
    made_up_table().save(folder / "latency.json")
    if alternatives is not None:
        write_json(folder / "alternatives.json", alternatives)
    return folder


ALTERNATIVES: list[dict[str, Any]] = [
    {
        "name": "dense + int8",
        "metric": 0.9197,
        "interval": [0.899, 0.936],
        "speedup": 2.2,
        "low": 2.18,
        "high": 2.23,
        "bytes_on_disk": 110e6,
        "sentence": "The dense model with weights and activations in int8, quantised dynamically.",
    },
    {"name": "6 of 12 layers", "metric": 0.893, "speedup": 1.93, "sentence": "Every second layer removed."},
]
