"""MiniLM on SST-2, 2x to 6x: gradual compression against one-shot compression to the same targets."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import ziplm
from gradual_parts import FOLDER, Judge, compress, keep, measured, rows_in, table_file
from harness import print_table
from models import BUILD
from ziplm.options.options import Options
from ziplm.results.family import family_text

MODEL = BUILD / "models" / "minilm-sst2"
TRAIN = BUILD / "data" / "sst2" / "train.tsv"
TARGETS = (2.0, 3.0, 4.0, 6.0)
LENGTH = 128
HERE = FOLDER / "sst2"


def held_out(data: Path) -> dict[str, Path]:
    """Return the files that models are judged on."""
    return {"dev": data / "SST-2" / "dev.tsv", "held-out": BUILD / "data" / "sst2" / "heldout.tsv"}


def options_of(data: Path, output: Path, **more: Any) -> Options:
    """Return the options of a run with one thread, measured in CPU time; one-shot unless `more` says so."""
    return Options(
        **{
            "model": str(MODEL),
            "task": "sst2",
            "output": str(output),
            "speedup": TARGETS,
            "train_file": str(TRAIN),
            "validation_file": str(data / "SST-2" / "dev.tsv"),
            "input_length": LENGTH,
            "threads": 1,
            "clock": "cpu",
            "measure_seconds": 15,
            **more,
        }
    )


def run(data: Path, steps: int, seeds: list[int]) -> None:
    """Make and judge both families with every seed, unless the results exist."""
    judge = Judge("sst2", MODEL, held_out(data), LENGTH)
    if not (HERE / "rows" / "dense.json").exists():
        keep(HERE / "rows" / "dense.json", {"method": "dense", **judge(judge.model)})
    for seed in seeds:
        one_shot = options_of(data, HERE / f"oneshot-{seed}", seed=seed)
        gradual = options_of(
            data,
            HERE / f"gradual-{seed}",
            seed=seed,
            mode="gradual",
            preset="bert-base-glue",  # the paper's hyper-parameters, but not its number of epochs
            dense_steps=0,
            calibration_samples=2048,
            steps_per_target=steps,
        )
        for method, options in (("one-shot", one_shot), ("gradual", gradual)):
            for member in compress(options, table_file(HERE, options)):
                target = float(member.metrics["target"]["value"])
                path = HERE / "rows" / f"{method}-{target:g}x-{seed}.json"
                if not path.exists():
                    row = {"method": method, "target": target, "seed": seed, **measured(member)}
                    keep(path, {**row, **judge(ziplm.load(member.folder))})


def report() -> None:
    """Print accuracy and measured speedup of both families at each target, and draw them."""
    rows = rows_in(HERE)
    for dense in (row for row in rows if row["method"] == "dense"):
        print(f"dense: dev {dense['dev']:.4f}, held-out {dense['held-out']:.4f}")
    table = {(row["method"], row["target"], row["seed"]): row for row in rows if "target" in row}
    for seed in sorted({seed for _, _, seed in table}):
        lines = []
        for method in ("one-shot", "gradual"):
            own = [table.get((method, target, seed)) for target in TARGETS]
            speeds = [row and f"{row['speedup']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" for row in own]
            lines.append([f"{method}: measured speedup", *(speed or "" for speed in speeds)])
            lines += [
                [f"{method}: {split}", *(f"{row[split]:.4f}" if row else "" for row in own)]
                for split in ("dev", "held-out")
            ]
        print_table(f"SST-2, accuracy, seed {seed}", ["", *(f"{target:g}x" for target in TARGETS)], lines)
        if took := family_text(HERE / f"gradual-{seed}"):
            print(f"gradual: {took}")
    print(f"figure: {draw(rows, HERE / 'curves.svg')}")


def draw(rows: list[dict[str, Any]], path: Path) -> Path:
    """Draw accuracy over measured speedup, with the dense model's accuracy as a line."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for axis, split in zip(axes, ("dev", "held-out"), strict=True):
        for row in rows:
            if row["method"] == "dense":
                axis.axhline(100 * row[split], color="grey", linestyle=":", label="dense")
        for method in ("one-shot", "gradual"):
            own = sorted((row["speedup"], 100 * row[split]) for row in rows if row["method"] == method)
            if own:
                axis.plot(*zip(*own, strict=True), marker="o", label=method)
        axis.set(title=f"SST-2, {split}", xlabel="measured speedup", ylabel="accuracy, %")
        axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path
