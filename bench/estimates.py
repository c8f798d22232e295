"""ziplm: the estimates of a dry run against the CPU time that the stages then take.

MiniLM-L6 classifies sentences, and a small GPT2 with random weights predicts text. Both are compressed to 2x
after the estimates are made, with few samples and short measurements.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
import ziplm
from harness import announce, print_table
from models import END, pretrained
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)
from ziplm.cli.demos import Reviews
from ziplm.options.options import Options
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.plan import estimate_run
from ziplm.runs.folder import Run

FEW: dict[str, Any] = {
    "speedup": (2.0,),
    "evaluations": 20,
    "profile_seconds": 10.0,
    "measure_seconds": 4.0,
    "threads": 1,
    "clock": "cpu",
}


def minilm(folder: Path) -> dict[str, Any]:
    """Save MiniLM-L6 with a new head and sentences from Rotten Tomatoes; return the options of the run."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(pretrained(), num_labels=2)
    ziplm.save(model, folder / "dense", AutoTokenizer.from_pretrained(pretrained()))
    reviews = Reviews.of("rotten_tomatoes")
    reviews.write(folder / "train.csv", 400, 1400)
    reviews.write(folder / "validation.csv", 0, 400)
    return {"task": "classification", "calibration_samples": 256, "search_samples": 64}


def gpt2(folder: Path) -> dict[str, Any]:
    """Save a GPT2 with 6 layers of width 256 and reviews from IMDB; return the options of the run."""
    reviews = Reviews.of("imdb")
    (folder / "train.txt").write_text("\n".join(reviews.texts[20:400]), encoding="utf-8")
    (folder / "validation.txt").write_text("\n".join(reviews.texts[:20]), encoding="utf-8")
    bpe = ByteLevelBPETokenizer()
    bpe.train([str(folder / "train.txt")], 1024, special_tokens=[END], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token=END, bos_token=END)  # type: ignore[no-untyped-call]
    end: Any = bpe.token_to_id(END)
    torch.manual_seed(0)
    shape: Any = {"n_positions": 128, "n_embd": 256, "n_layer": 6, "n_head": 4, "bos_token_id": end}
    config = GPT2Config(vocab_size=len(tokenizer), eos_token_id=end, **shape)
    model = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    ziplm.save(model, folder / "dense", tokenizer)
    return {"task": "causal-lm", "calibration_samples": 96, "search_samples": 24}


MODELS = {"minilm": minilm, "gpt2": gpt2}


def compare(name: str, folder: Path) -> None:
    """Estimate a run, carry it out, and print the two beside each other."""
    more = MODELS[name](folder)
    files = {kind: str(next(folder.glob(f"{kind}.*"))) for kind in ("train", "validation")}
    options = Options(
        model=str(folder / "dense"),
        output=str(folder / "run"),
        train_file=files["train"],
        validation_file=files["validation"],
        **FEW,
        **more,
    )
    run = Run(options.output)
    _, estimates = estimate_run(load_start(options, run), run, options.targets())
    estimated = estimates.by_stage()
    ziplm.compress(options=options)
    taken = run.cpu_seconds
    rows = [
        [stage, f"{estimated[stage]:.1f}", f"{taken[stage]:.1f}", f"{estimated[stage] / taken[stage]:.2f}"]
        for stage in taken
    ]
    sums = sum(estimated.values()), sum(taken.values())
    rows.append(["total", f"{sums[0]:.1f}", f"{sums[1]:.1f}", f"{sums[0] / sums[1]:.2f}"])
    note = f"wall time was {estimates.waiting:.1f} times the CPU time during the probe"
    print_table(f"{name}: CPU seconds", ["stage", "estimate", "taken", "estimate / taken"], rows, note)


def main() -> None:
    """Compare estimates and reality for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="models to try (all)"
    )
    asked = parser.parse_args()
    announce("ziplm, estimates", "ziplm", "torch", "transformers")
    for name in asked.models:
        with tempfile.TemporaryDirectory() as folder:
            compare(name, Path(folder))


if __name__ == "__main__":
    main()
