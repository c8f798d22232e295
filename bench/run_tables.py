"""Markdown tables of the results of bench/runs.py, read from the metrics.json files of its runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ziplm
from oneshot_judge import Judge
from ziplm.files import read_json, write_json
from ziplm.options.toml import load_options
from ziplm.pipelines.loading import load_start
from ziplm.results.alternatives_table import compared_models, headings
from ziplm.results.run_data import read_run
from ziplm.results.sizes import sizes_text
from ziplm.results.texts import environment_text
from ziplm.runs.folder import Run

SPLIT = "held-out"


def members(run: Path) -> list[dict[str, Any]]:
    """Return metrics.json of all finished members of a run, the slowest first."""
    return sorted((read_json(path) for path in run.glob("*/metrics.json")), key=speedup)


def speedup(member: dict[str, Any]) -> float:
    """Return the measured speedup of a member, or the predicted one if nothing was measured."""
    return float((member["measured"] or member["predicted"])["speedup"])


def speed_cell(member: dict[str, Any]) -> str:
    """Format the measured speedup of a member with its interval, in one line."""
    measured = member["measured"]
    if measured is None:
        return f"~{speedup(member):.2f}x predicted"
    return f"{measured['speedup']:.2f}x [{measured['low']:.2f}, {measured['high']:.2f}]"


def judge_all(folder: Path, file: Path) -> None:
    """Judge all finished members on the same file: their metric, and their divergence from the dense model.

    The divergence in metrics.json does not allow a comparison between runs: it is computed on the few judging
    samples of each run, which depend on the number of calibration samples.
    """
    judge = None
    for path in sorted(folder.glob("*/*/metrics.json")):
        judged = judged_file(folder, path.parent)
        if not judged.exists():
            if judge is None:
                run = Run(path.parents[1])
                judge = Judge(load_start(load_options(run.options_file), run), {SPLIT: str(file)})
            write_json(judged, judge(ziplm.load(path.parent)))


def judged_file(folder: Path, result: Path) -> Path:
    """Return the file with the judgement of one member."""
    return folder / "judged" / f"{result.parent.name}-{result.name}.json"


def judgements(folder: Path, run: str) -> dict[str, dict[str, float]]:
    """Return speedup, metric, KL and share of parameters left of each judged member, by target."""
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
    """Print a table that can be pasted into a page."""
    print()
    for row in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(map(str, row))} |")
    print(flush=True)


def family_table(folder: Path) -> None:
    """Print every metric of the dense model and of each member, and what is left of the layers."""
    family = members(folder / "run")
    if not family:
        print("no member is finished yet")
        return
    rows = []
    for split, dense in family[0]["metrics"]["dense"].items():
        for name, value in dense.items():
            now = (f"{member['metrics']['compressed'][split][name]:.4f}" for member in family)
            rows.append([f"{name}, {split}", f"{value:.4f}", *now])
    rows += [
        ["speedup, measured [99 % interval]", "1", *map(speed_cell, family)],
        ["layers' parameters", "100 %", *(f"{parameters_left(member):.0%}" for member in family)],
        ["heads/width of each layer", "", *(sizes_text(member["sizes"]) for member in family)],
    ]
    print_markdown(["", "dense", *(member["target"]["name"] for member in family)], rows)
    print_seconds(family[-1])


def parameters_left(member: dict[str, Any]) -> float:
    """Return the share of the layers' parameters that is left."""
    return float(member["parameters"]["layers"] / member["dense_parameters"]["layers"])


def print_seconds(member: dict[str, Any]) -> None:
    """Print the seconds that each stage of a run took."""
    spent = ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in member["seconds"].items())
    print(f"seconds of the whole run: {spent}", flush=True)


def sparsity_table(folder: Path) -> None:
    """Compare pruning for speedup with pruning for sparsity at the same measured speedups.

    Between two sparsities, the metric and log KL are interpolated linearly in the logarithm of the speedup.
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
    """Print metric and KL at each target, by number of calibration samples."""
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
    """Print measured and requested speed, and the sizes of the layers, for generation and for throughput."""
    rows, shapes = [], []
    for path in sorted(folder.glob("*/*/metrics.json")):
        member, setting = read_json(path), load_options(Run(path.parents[1]).options_file).setting
        measured = member["measured"]
        tokens = setting.batch_size * (
            setting.new_tokens if setting.regime == "generate" else setting.lengths[0]
        )
        wanted = member["target"]["value"]
        rows.append(
            [
                f"{path.parents[1].name}, {member['target']['name']}",
                f"{tokens / measured['dense_seconds']:.1f}",
                f"{wanted * tokens / measured['dense_seconds']:.1f}",
                f"{tokens / measured['seconds']:.1f}",
                speed_cell(member),
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


def alternatives_table(folder: Path) -> None:
    """Print, for each run, the members beside what people do instead: metric, speed and size on disk."""
    for path in sorted(folder.glob("*/alternatives.json")):
        run = read_run(path.parent)
        print(f"\n{run.label}: {environment_text(run.reports[0]['environment'])}")
        print_markdown(headings(run), [row.texts() for row in compared_models(run)])


def targets_table(folder: Path) -> None:
    """Print, for each run, the measured speed of its members beside the speed that was asked for."""
    rows = []
    for run in sorted(path.parent for path in folder.glob("*/config.toml")):
        for member in members(run):
            asked, measured = member["target"]["value"], member["measured"]
            inside = "yes" if measured["low"] <= asked <= measured["high"] else "no"
            difference = f"{measured['speedup'] / asked - 1:+.1%}"
            rows.append([run.name, f"{asked:g}x", speed_cell(member), difference, inside])
    print_markdown(
        ["engine", "asked for", "measured [99 % interval]", "difference", "asked in interval"], rows
    )
