"""Tables of the runs of bench/runs.py, in Markdown, from their metrics.json files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ziplm
from oneshot import Judge
from ziplm.options.options import Options
from ziplm.files import read_json, write_json
from ziplm.pipeline import Pipeline
from ziplm.runs.progress import Silent
from ziplm.results.table import sizes_text, speed_text
from ziplm.runs.folder import Run

SPLIT = "held-out"


def members(run: Path) -> list[dict[str, Any]]:
    """metrics.json of all finished targets of a run, the slowest first."""
    return sorted((read_json(path) for path in run.glob("*/metrics.json")), key=speedup)


def speedup(member: dict[str, Any]) -> float:
    """As measured; as predicted where nothing was measured."""
    return float((member["measured"] or member["predicted"])["speedup"])


def judge_all(folder: Path, file: Path) -> None:
    """Metric and divergence from the dense model of all finished targets on one file, the same for all.

    The divergence in metrics.json is that on the run's own judging samples, which are few, and others when
    the run calibrates on more.
    """
    judge = None
    for path in sorted(folder.glob("*/*/metrics.json")):
        judged = judged_file(folder, path.parent)
        if not judged.exists():
            if judge is None:
                run = Run(path.parents[1])
                judge = Judge(Pipeline(Options.load(run.config_file), run, Silent()), {SPLIT: str(file)})
            write_json(judged, judge(ziplm.load(path.parent)))


def judged_file(folder: Path, result: Path) -> Path:
    """Where the judgement of one target is kept."""
    return folder / "judged" / f"{result.parent.name}-{result.name}.json"


def judgements(folder: Path, run: str) -> dict[str, dict[str, float]]:
    """By name of the target: what `judge_all` found, with the short names metric and kl, and the speedup."""
    found = {}
    for member in members(folder / run):
        judged = judged_file(folder, folder / run / member["target"]["name"])
        if judged.exists():
            own = read_json(judged)
            found[member["target"]["name"]] = {
                "speedup": speedup(member),
                "metric": own[f"{SPLIT} metric"],
                "kl": own[f"{SPLIT} kl"],
                "left": member["parameters"]["layers"] / member["dense_parameters"]["layers"],
            }
    return found


def print_markdown(head: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
    """A table to paste into a page."""
    print()
    for row in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(map(str, row))} |")
    print(flush=True)


def family_table(folder: Path) -> None:
    """Every metric of the dense model and of each target, and what is left of the layers."""
    family = members(folder / "run")
    if not family:
        print("nothing is finished")
        return
    rows = []
    for split, dense in family[0]["metrics"]["dense"].items():
        for name, value in dense.items():
            now = (f"{member['metrics']['compressed'][split][name]:.4f}" for member in family)
            rows.append([f"{name}, {split}", f"{value:.4f}", *now])
    rows += [
        ["speedup, measured [99 % interval]", "1", *map(speed_text, family)],
        ["layers' parameters", "100 %", *(f"{parameters_left(member):.0%}" for member in family)],
        ["heads/width of each layer", "", *(sizes_text(member["sizes"]) for member in family)],
    ]
    print_markdown(["", "dense", *(member["target"]["name"] for member in family)], rows)
    print_seconds(family[-1])


def parameters_left(member: dict[str, Any]) -> float:
    """The share of the layers' parameters that is left."""
    return float(member["parameters"]["layers"] / member["dense_parameters"]["layers"])


def print_seconds(member: dict[str, Any]) -> None:
    """What the stages of a run took."""
    spent = ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in member["seconds"].items())
    print(f"seconds of the whole run: {spent}", flush=True)


def sparsity_table(folder: Path) -> None:
    """Models pruned for a speed, beside what pruning for sparsity has at the same measured speedup.

    Between two sparsities, metric and log KL are taken to be linear in the logarithm of the speedup.
    """
    by_speed, by_size = judgements(folder, "for-speedup"), judgements(folder, "for-sparsity")
    head = ["target", "speedup", "layers' parameters", "accuracy", "KL to dense"]
    for family in (by_speed, by_size):
        rows = [
            [name, f"{m['speedup']:.2f}x", f"{m['left']:.0%}", f"{m['metric']:.4f}", f"{m['kl']:.3g}"]
            for name, m in family.items()
        ]
        print_markdown(head, rows)
    known = sorted(by_size.values(), key=lambda m: m["speedup"])
    at = np.log([m["speedup"] for m in known])
    rows = []
    for m in by_speed.values():
        where = np.log(m["speedup"])
        if known and at[0] <= where <= at[-1]:
            metric = np.interp(where, at, [k["metric"] for k in known])
            kl = np.exp(np.interp(where, at, np.log([k["kl"] for k in known])))
            other = [f"{metric:.4f}", f"{kl:.3g}"]
        else:
            other = ["", ""]
        rows.append([f"{m['speedup']:.2f}x", f"{m['metric']:.4f}", other[0], f"{m['kl']:.3g}", other[1]])
    columns = ["accuracy, for speedup", "accuracy, for sparsity", "KL, for speedup", "KL, for sparsity"]
    print_markdown(["at a measured speedup of", *columns], rows)


def calibration_table(folder: Path) -> None:
    """Metric and KL at each target, by how many samples the run was calibrated on."""
    runs = sorted((path.name for path in folder.glob("*") if path.name.isdigit()), key=int)
    found = {run: judgements(folder, run) for run in runs}
    targets = list(dict.fromkeys(target for family in found.values() for target in family))
    rows = [
        [
            run,
            *(
                text
                for t in targets
                for text in ((f"{f[t]['metric']:.4f}", f"{f[t]['kl']:.3g}") if t in f else ("", ""))
            ),
        ]
        for run, f in found.items()
    ]
    print_markdown(["samples", *(f"{t}, {what}" for t in targets for what in ("accuracy", "KL"))], rows)


def generation_table(folder: Path) -> None:
    """Measured against asked for, and the shapes, for generation and for throughput."""
    rows, shapes = [], []
    for path in sorted(folder.glob("*/*/metrics.json")):
        member, config = read_json(path), Options.load(path.parents[1] / "config.toml")
        measured, setting = member["measured"], config.setting
        tokens = setting.batch_size * (
            setting.new_tokens if setting.regime == "generate" else setting.sequence_length
        )
        wanted = member["target"]["value"]
        rows.append(
            [
                f"{path.parents[1].name}, {member['target']['name']}",
                f"{tokens / measured['dense_seconds']:.1f}",
                f"{wanted * tokens / measured['dense_seconds']:.1f}",
                f"{tokens / measured['seconds']:.1f}",
                speed_text(member),
                f"{measured['speedup'] / wanted - 1:+.1%}",
                f"{member['predicted']['speedup']:.2f}x",
            ]
        )
        sizes, dense = member["sizes"], member["dense_sizes"]
        left = {kind: [size for size in own if size] for kind, own in sizes.items()}
        shapes.append(
            [
                f"{path.parents[1].name}, {member['target']['name']}",
                *(f"{len(sizes[kind]) - len(left[kind])} of {len(sizes[kind])}" for kind in sizes),
                *(f"{sum(left[kind]) / max(1, len(left[kind])):.4g} of {dense[kind]}" for kind in sizes),
                sizes_text(sizes),
            ]
        )
    head = ["", "tokens/s dense", "target", "measured", "speedup [99 % interval]", "off target", "predicted"]
    print_markdown(head, rows)
    gone, mean = ["attentions gone", "FFNs gone"], ["mean heads of the rest", "mean width of the rest"]
    print_markdown(["", *gone, *mean, "heads/width of each layer"], shapes)
