"""ziplm: what a one-shot run of a BERT-base to 2x and 4x takes at the defaults, stage by stage.

    nox -s bench -- stages_defaults                           # texts as long as those of SST-2
    nox -s bench -- stages_defaults --length 384              # texts of 384 tokens: hours
    nox -s bench -- stages_defaults --against CHECKOUT        # beside a run with the code of a checkout
    nox -s bench -- stages_defaults --against CHECKOUT --demo # the same for `ziplm demo`

Weights and words are random. Times are CPU seconds of one thread, and multiples of one forward pass of the
dense model over the calibration samples, a unit that carries over to other machines. With --against, both
runs go at the same time, so that they meet the same load; only their totals are compared.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import ziplm
from checkouts import compare, compress_arguments
from harness import announce, print_table
from stages import WORDS, Watch, word_tokenizer
from transformers import BertConfig, BertForSequenceClassification

KIND: Any = BertForSequenceClassification
SAMPLES, TRAINING, VALIDATION = 2048, 4000, 872
# Words of a text: the logarithm's mean and standard deviation. SST-2's training texts are phrases with a
# median of 6 words and a mean of 8, its validation texts are sentences.
LENGTHS = {"train": (1.79, 0.77), "validation": (2.89, 0.5)}
TARGETS = {"speedup": [2, 4], "threads": 1, "clock": "cpu"}
PARTS = {"calibrate: gradients": "calibrate", "calibrate: inputs": "calibrate", "fit: measure": "fit"}


def make_inputs(folder: Path, length: int | None) -> Path:
    """Save a random BERT-base with a tokenizer, and texts for its task; return the folder of the model."""
    torch.manual_seed(0)
    model = KIND(BertConfig())
    ziplm.save(model, folder / "dense", word_tokenizer(decoder=False))
    draw = random.Random(0)
    for name, count in (("train", TRAINING), ("validation", VALIDATION)):
        rows = ["text,label"]
        for number in range(count):
            words = length - 2 if length else round(min(60.0, max(1.0, draw.lognormvariate(*LENGTHS[name]))))
            rows.append(" ".join(f"w{draw.randrange(WORDS)}" for _ in range(words)) + f",{number % 2}")
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    return folder / "dense"


def options_for(folder: Path, output: str, length: int | None) -> dict[str, Any]:
    """Return the options of the run."""
    files = {f"{name}_file": str(folder / f"{name}.csv") for name in LENGTHS}
    options = {**TARGETS, **files, "output": str(folder / output)}
    return options | ({"max_length": length} if length else {})


@torch.inference_mode()
def forward_seconds(folder: Path) -> float:
    """Return the CPU seconds of one forward pass over as many texts as are calibrated on by default."""
    model = KIND.from_pretrained(folder / "dense").eval()
    tokenizer = word_tokenizer(decoder=False)
    texts = [
        row.rsplit(",", 1)[0] for row in (folder / "train.csv").read_text().splitlines()[1 : SAMPLES + 1]
    ]
    texts.sort(key=len)
    batches = [
        tokenizer(texts[first : first + 32], return_tensors="pt", padding=True, truncation=True)
        for first in range(0, SAMPLES, 32)
    ]
    model(**batches[0])  # the first pass takes longer
    start = time.process_time()
    for batch in batches:
        model(**batch)
    return time.process_time() - start


def run_here(folder: Path, length: int | None) -> tuple[dict[str, float], float]:
    """Make the run in this process, and return the CPU seconds of its stages and its peak memory in MB."""
    watch = Watch()
    options = options_for(folder, "run", length)
    ziplm.compress(str(folder / "dense"), "classification", progress=watch, **options)
    seconds: dict[str, float] = {}
    for description, spent in watch.seconds.items():
        stage = PARTS.get(description, description.split(":")[0].split()[0])
        seconds[stage] = seconds.get(stage, 0.0) + spent
    watch.peak()
    return seconds, watch.most


def main() -> None:
    """Run the stages in this process, or compare whole runs with those of another checkout."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, help="tokens of all texts (as in SST-2)")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout to compare with")
    parser.add_argument("--demo", action="store_true", help="compare runs of `ziplm demo` instead")
    given = parser.parse_args()
    if given.demo and not given.against:
        parser.error("--demo needs --against")
    announce("ziplm, stages at the defaults", "ziplm", "torch", "transformers")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dense = make_inputs(folder, given.length)
        if given.against:
            checkouts = [Path(__file__).resolve().parents[1], given.against.resolve()]
            outputs = {checkout: f"run{number}" for number, checkout in enumerate(checkouts)}
            if given.demo:
                commands = {each: ["demo", "--output", str(folder / name)] for each, name in outputs.items()}
            else:
                commands = {
                    each: compress_arguments(dense, "classification", options_for(folder, name, given.length))
                    for each, name in outputs.items()
                }
            compare("the same command with the code of each checkout, at the same time", commands)
            return
        unit = forward_seconds(folder)
        seconds, peak = run_here(folder, given.length)
        total = sum(seconds.values())
        print_table(
            "BERT-base to 2x and 4x",
            ["stage", "CPU seconds", "dense passes"],
            [
                [stage, f"{spent:.0f}", f"{spent / unit:.2f}"]
                for stage, spent in [*seconds.items(), ("total", total)]
            ],
        )
        print(f"a dense pass takes {unit:.0f} s; peak memory {peak:.0f} MB above that of the imports")


if __name__ == "__main__":
    main()
