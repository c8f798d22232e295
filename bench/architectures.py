"""ziplm: experiments with real models of other architectures than BERT and GPT2, with the command line.

    python bench/architectures.py mpnet --data FOLDER            # at most 90 minutes; resumes if interrupted
    python bench/architectures.py mpnet --data FOLDER --report   # only prints the results so far

mpnet: all-mpnet-base-v2 as embedder, calibrated on sentences without labels, beside all-MiniLM-L6-v2, which
is what people take when it is too slow; mpnet-gradual also trains it, without labels. smollm2: SmolLM2-135M,
once for throughput and once for generation; its weights were stored in 4 bits, so its perplexity is not that
of the published model. distilbert: a tagger of corrections, judged on misspelt words. FOLDER is that of
bench/models.py, the weights are those of bench/architectures.txt. Unknown options are passed on to
`ziplm compress`.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from models import BUILD, write_lines
from packaged_models import OUTSIDE, packaged_model
from run_inputs import INPUTS, excerpt, sentences
from run_tables import family_table, generation_table, members, print_markdown, speedup
from runs import GENERATE, ONE_THREAD, SHORT, WIKITEXT, Experiment, here, main, repeated, run
from ziplm.files import read_json, write_json

MPNET, MINILM = "all-mpnet-base-v2", "all-MiniLM-L6-v2"
LINES = 400  # of WikiText-2's validation text: all of it would take hours with SmolLM2
HELD_OUT = 500  # sentences that the tagger is judged on
LIMITED = ("--profile-seconds", "120", "--measure-seconds", "60")
TRAINED = ("--mode", "gradual", *repeated("--speedup", (2, 3)), "--train-minutes", "15")
FEW = ("--calibration-samples", "128", "--search-samples", "32", "--evaluations", "24")
# Words that writers confuse, and what is written instead; the tagger knows how to correct each of them.
CONFUSED = {
    "to": "too",
    "too": "to",
    "there": "their",
    "their": "there",
    "than": "then",
    "then": "than",
    "its": "it's",
    "have": "has",
    "has": "have",
    "were": "was",
    "are": "is",
    "whose": "who's",
    "whether": "weather",
    "passed": "past",
    "led": "lead",
    "an": "a",
}


def tagged(data: Path) -> Path:
    """Return a folder with sentences of WikiText-2 in which half of the CONFUSED words are wrong."""
    folder = BUILD / "data" / "confused-words"
    if not (folder / "validation.jsonl").exists():
        draw = random.Random(0)
        rows = []
        for sentence in sentences(data).read_text(encoding="utf-8").splitlines():
            right = sentence.split()
            wrong = [CONFUSED.get(word, word) if draw.random() < 0.5 else word for word in right]
            tags = [
                f"$REPLACE_{own}" if own != written else OUTSIDE
                for own, written in zip(right, wrong, strict=True)
            ]
            rows.append(json.dumps({"tokens": wrong, "tags": tags}))
        write_lines(folder / "train.jsonl", rows[:-HELD_OUT])
        write_lines(folder / "validation.jsonl", rows[-HELD_OUT:])  # of other articles
    return folder


def embedder_table(folder: Path) -> None:
    """Print the family of MPNet, and after it MiniLM's metrics at its measured speed."""
    family_table(folder)
    if not (folder / "minilm-speed.json").exists():
        print(f"{MINILM} is not measured yet")
        return
    rows = []
    for member in members(folder / "run"):
        found = member["metrics"]["compressed"]["validation"]
        rows.append((speedup(member), f"{MPNET}, {member['target']['name']}", found))
    speed = read_json(folder / "minilm-speed.json")["models"][1]["speedup"]
    rows.append((float(speed), MINILM, read_json(folder / "minilm.json")["validation"]))
    print_markdown(
        ["", "measured speedup", "Spearman", "Pearson"],
        [
            [name, f"{speed:.2f}x", f"{found['spearman']:.4f}", f"{found['pearson']:.4f}"]
            for speed, name, found in sorted(rows, key=lambda row: row[0])
        ],
    )


def decoder_table(folder: Path) -> None:
    """Print tokens per second and sizes, and then the perplexities on LINES of the validation text."""
    generation_table(folder)
    rows = []
    for kind in ("throughput", "generate"):
        for member in members(folder / kind):
            found = [
                member["metrics"][which]["validation"]["perplexity"] for which in ("dense", "compressed")
            ]
            rows.append([f"{kind}, {member['target']['name']}", *(f"{value:.2f}" for value in found)])
    print_markdown(["perplexity", "dense", "compressed"], rows)


EXPERIMENTS = {
    "mpnet": Experiment(
        MPNET,
        "embedding",
        "{sentences}",
        "{data}/STS-B/dev.tsv",
        {"run": (*repeated("--speedup", (1.5, 2, 3, 4)), *SHORT, *LIMITED)},
        embedder_table,
    ),
    "mpnet-gradual": Experiment(
        MPNET,
        "embedding",
        "{corpus}",
        "{data}/STS-B/dev.tsv",
        {"run": (*TRAINED, *SHORT, *LIMITED)},
        embedder_table,
    ),
    "smollm2": Experiment(
        "smollm2-135m",
        "causal-lm",
        WIKITEXT[0],
        "{lines}",
        {
            "throughput": ("--speedup", "1.5", "--batch-size", "4", *FEW, *LIMITED),
            "generate": ("--speedup", "1.5", *GENERATE.split(), *FEW, *LIMITED),
        },
        decoder_table,
    ),
    "distilbert": Experiment(
        "distilbert-tagger",
        "token-classification",
        "{tagged}/train.jsonl",
        "{tagged}/validation.jsonl",
        {"run": ("--speedup", "2", *SHORT, *LIMITED)},
    ),
}
OWN_INPUTS: dict[str, Callable[[Path], Path]] = {
    **INPUTS,
    "lines": partial(excerpt, count=LINES),
    "tagged": tagged,
}


def measure_minilm(folder: Path, data: Path) -> None:
    """Evaluate MiniLM, and measure how much faster it is than MPNet, unless both are done."""
    mpnet, minilm = (here(packaged_model(name)) for name in (MPNET, MINILM))
    validation = ("--validation-file", here(data / "STS-B" / "dev.tsv"))
    commands = {
        "minilm.json": ("evaluate", minilm, "--task", "embedding", *validation),
        "minilm-speed.json": ("benchmark", mpnet, minilm, *ONE_THREAD),
    }
    for file, command in commands.items():
        if not (folder / file).exists():
            write_json(folder / file, answer(*command))


def answer(*arguments: str) -> Any:
    """Run a ziplm command with one thread, and return the JSON that it prints."""
    ended = subprocess.run(
        [sys.executable, "-m", "ziplm", *arguments, "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(ended.stdout)


def run_packaged(experiment: Experiment, folder: Path, data: Path, more: Sequence[str]) -> None:
    """Run an experiment on packaged weights; MiniLM stands beside MPNet."""
    if experiment.model == MPNET:
        measure_minilm(folder, data)
    run(experiment, folder, data, more, lambda name, _: packaged_model(name), OWN_INPUTS)


if __name__ == "__main__":
    try:
        main(__doc__, EXPERIMENTS, "architectures", run_packaged)
    except subprocess.CalledProcessError as error:  # ziplm has printed the error
        sys.exit(error.returncode)
