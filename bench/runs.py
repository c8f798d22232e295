"""ziplm: experiments with the command line. Commands are printed and run, and their results tabulated.

    python bench/runs.py stsb --data FOLDER            # takes minutes to hours; resumes if interrupted
    python bench/runs.py stsb --data FOLDER --report   # only prints the results so far

The dense models and FOLDER are those of bench/models.py. Results are kept under build/runs. Unknown options
are passed on to `ziplm compress`.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import announce
from models import BUILD
from run_inputs import AS_IT_COMES, INPUTS, RANDOM, dense_model
from run_tables import (
    alternatives_table,
    calibration_table,
    family_table,
    generation_table,
    judge_all,
    sparsity_table,
    targets_table,
)

ONE_THREAD = ("--threads", "1", "--clock", "cpu")
SAMPLES = (4, 32, 128, 512, 2048, 4096)
SPARSITIES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SHORT = ("--calibration-samples", "512", "--search-samples", "64", "--evaluations", "40")
# For random weights, where a few samples and a short search are enough.
BRIEF = ("--calibration-samples", "64", "--search-samples", "16", "--evaluations", "10")
LONG = ("--profile-seconds", "240", "--measure-seconds", "90")
ONNXRUNTIME = ("--engine", "onnxruntime", "--alternatives")
INT8 = (*ONNXRUNTIME, "--quantize", "int8")
# Where speeds matter and the quality does not.
QUICK = (*BRIEF, "--no-refit")
TARGETED = [
    ("openvino", ("--engine", "openvino")),
    ("openvino-int8", ("--engine", "openvino", "--quantize", "int8")),
    ("compile", ("--engine", "compile")),
]
GRADUAL = ("--mode", "gradual", "--steps-per-target", "600")
BATCHES, SINGLE = ("--batch-size", "8"), ("--regime", "latency", "--input-length", "32")
GENERATE = "--regime generate --new-tokens 32 --prompt-length 16 --prompt-length 32 --prompt-length 64"


@dataclass(frozen=True)
class Experiment:
    """A dense model, its data, and the runs that compress it.

    Attributes:
        model: name of the dense model, which `run_inputs.dense_model` knows.
        task: name of the task in ziplm.
        train: file to calibrate on.
        validation: file to evaluate on.
        runs: options of `ziplm compress`, by name of the run.
        table: prints the results, given the folder of the experiment.
        judged: whether members are compared with the dense model on all of `validation`.
        profiled: whether all runs share one latency table, measured beforehand.
    """

    model: str
    task: str
    train: str
    validation: str
    runs: Mapping[str, Sequence[str]]
    table: Callable[[Path], None] = family_table
    judged: bool = False
    profiled: bool = False


Runner = Callable[[Experiment, Path, Path, Sequence[str]], None]


def repeated(option: str, values: Sequence[float]) -> tuple[str, ...]:
    """Return an option repeated for each of several values."""
    return tuple(word for value in values for word in (option, f"{value:g}"))


HELD_OUT = ("{build}/data/sst2/train.tsv", "{build}/data/sst2/heldout.tsv")
WIKITEXT = ("{data}/wikitext-2/train.txt", "{data}/wikitext-2/valid.txt")
UP_TO_3 = {"run": repeated("--speedup", (1.5, 2, 3))}
EXPERIMENTS = {
    "sst2": Experiment(
        "minilm-sst2", "sst2", *HELD_OUT, {"run": repeated("--speedup", (1.5, 2, 3, 4))}, judged=True
    ),
    "gpt2": Experiment("gpt2-wikitext2", "causal-lm", *WIKITEXT, {"run": ("--speedup", "2")}),
    "stsb": Experiment("minilm-stsb", "stsb", "{data}/STS-B/train.tsv", "{data}/STS-B/dev.tsv", UP_TO_3),
    "mrpc": Experiment("minilm-mrpc", "mrpc", "{data}/MRPC/train.tsv", "{data}/MRPC/dev.tsv", UP_TO_3),
    "embedding": Experiment(AS_IT_COMES, "embedding", "{sentences}", "{data}/STS-B/dev.tsv", UP_TO_3),
    "engines": Experiment(
        AS_IT_COMES,
        "embedding",
        "{sentences}",
        "{data}/STS-B/dev.tsv",
        {
            "onnxruntime-int8-8x128": (*repeated("--speedup", (3, 4, 6)), *BATCHES, *INT8),
            "onnxruntime-int8-1x32": (*repeated("--speedup", (3, 4)), *SINGLE, *INT8),
            "openvino-int8-8x128": ("--speedup", "4", *BATCHES, *INT8, "--engine", "openvino"),
            "onnxruntime-8x128": (*repeated("--speedup", (2, 3, 4)), *BATCHES, *ONNXRUNTIME),
        },
        alternatives_table,
    ),
    "engines-targets": Experiment(
        AS_IT_COMES,
        "embedding",
        "{sentences}",
        "{data}/STS-B/dev.tsv",
        {name: (*repeated("--speedup", (2, 3, 4)), *BATCHES, *options, *QUICK) for name, options in TARGETED},
        targets_table,
    ),
    "engines-gradual": Experiment(
        AS_IT_COMES,
        "embedding",
        "{corpus}",
        "{data}/STS-B/dev.tsv",
        {"onnxruntime-int8-8x128": (*repeated("--speedup", (4, 6)), *BATCHES, *INT8, *GRADUAL)},
        alternatives_table,
    ),
    "engines-sst2": Experiment(
        "minilm-sst2",
        "sst2",
        *HELD_OUT,
        {"onnxruntime-int8-8x128": (*repeated("--speedup", (4, 6)), *BATCHES, *INT8, *GRADUAL)},
        alternatives_table,
    ),
    "squad": Experiment(
        "minilm-squad",
        "squad",
        "{build}/data/squad/train.json",
        "{build}/data/squad/validation.json",
        {"run": (*repeated("--speedup", (1.5, 2)), "--input-length", "256", *SHORT)},
    ),
    "sparsity": Experiment(
        "minilm-sst2",
        "sst2",
        *HELD_OUT,
        {
            "for-speedup": repeated("--speedup", (2, 3, 4)),
            "for-sparsity": repeated("--sparsity", SPARSITIES),
        },
        sparsity_table,
        judged=True,
    ),
    "calibration": Experiment(
        "minilm-sst2",
        "sst2",
        *HELD_OUT,
        {
            str(count): (*repeated("--speedup", (1.5, 2)), "--calibration-samples", str(count))
            for count in SAMPLES
        },
        calibration_table,
        judged=True,
        profiled=True,
    ),
    "generate": Experiment(
        RANDOM,
        "causal-lm",
        WIKITEXT[0],
        "{excerpt}",
        {
            "generate": ("--speedup", "2", *GENERATE.split(), *BRIEF, *LONG),
            "throughput": ("--speedup", "2", "--batch-size", "4", *BRIEF, *LONG),
        },
        generation_table,
    ),
}
# The same with one short text at a time.
for _name in ("engines-gradual", "engines-sst2"):
    EXPERIMENTS[f"{_name}-single"] = replace(
        EXPERIMENTS[_name],
        runs={"onnxruntime-int8-1x32": ("--speedup", "4", *SINGLE, *INT8, *GRADUAL)},
    )


def run(
    experiment: Experiment,
    folder: Path,
    data: Path,
    more: Sequence[str],
    dense: Callable[[str, Path], Path] = dense_model,
    inputs: Mapping[str, Callable[[Path], Path]] = INPUTS,
) -> None:
    """Prepare the inputs of an experiment, and call ziplm for each of its runs.

    Args:
        experiment: the experiment.
        folder: where its runs are kept.
        data: folder with the published datasets.
        more: further options of `ziplm compress`.
        dense: returns the folder of the dense model, given its name and `data`.
        inputs: what files of the experiment may be made from `data`, by name.
    """
    model = here(dense(experiment.model, data))
    places = {"data": here(data), "build": here(BUILD)}
    for place, made in inputs.items():
        if f"{{{place}}}" in experiment.train + experiment.validation:
            places[place] = here(made(data))
    train, validation = (path.format(**places) for path in (experiment.train, experiment.validation))
    table = folder / "latency.json"
    if experiment.profiled and not table.exists():
        ziplm("profile", model, *ONE_THREAD, "-o", here(table))
    for own, options in experiment.runs.items():
        files = ("--train-file", train, "--validation-file", validation)
        given = ("--latency-table", here(table)) if experiment.profiled else ()
        output = ("-o", here(folder / own))
        ziplm(
            "compress",
            model,
            "--task",
            experiment.task,
            *files,
            *options,
            *ONE_THREAD,
            *given,
            *output,
            *more,
        )
    if experiment.judged:
        judge_all(folder, Path(validation))


def ziplm(*arguments: str) -> None:
    """Print a ziplm command, and run it with one thread."""
    print(f"\n$ OMP_NUM_THREADS=1 {shlex.join(['ziplm', *arguments])}\n", flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "ziplm", *arguments], env=environment, check=True)


def here(path: Path) -> str:
    """Return a path as a user in the current folder would write it."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def main(
    description: str | None = __doc__,
    experiments: Mapping[str, Experiment] = EXPERIMENTS,
    place: str = "runs",
    run: Runner = run,
) -> None:
    """Run what is missing of the experiment that the command line names, then print its results.

    Args:
        description: the text of the help page.
        experiments: the experiments to choose from, by name.
        place: folder of the results below build/.
        run: carries out an experiment, given its folder, the data and further options of `ziplm compress`.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=experiments)
    parser.add_argument("--data", type=Path, required=True, help="folder with the published datasets")
    parser.add_argument("--report", action="store_true", help="print the results so far, run nothing")
    options, more = parser.parse_known_args()
    experiment, folder = experiments[options.experiment], BUILD / place / options.experiment
    announce(f"ziplm compress: {options.experiment}", "ziplm", "torch", "transformers")
    if not options.report:
        run(experiment, folder, options.data, more)
    experiment.table(folder)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:  # ziplm has printed the error
        sys.exit(error.returncode)
