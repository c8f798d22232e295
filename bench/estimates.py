"""ziplm: the estimates of a dry run against the CPU time that the stages then take.

MiniLM-L6 classifies sentences, in torch and with int8 in ONNX Runtime, and a small GPT2 with random weights
predicts text. A DistilBERT with random weights, of another shape and in another regime, is the control: only
the number of rounds of a fit was chosen with a look at it. A fit is compared for as many rounds as it
had, one to three, which no estimate can know. Each is compressed after its estimates are made,
with few samples and short measurements. These have limits by the clock: if the load of the machine changes
meanwhile, profile, fit and measure differ from their estimates accordingly.
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
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)
from ziplm.cli.demos import Reviews
from ziplm.files import read_json
from ziplm.options.options import Options
from ziplm.pipelines.cost_model import FIT_ROUNDS
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
    return _sentences(folder)


def minilm_int8(folder: Path) -> dict[str, Any]:
    """Save the same as `minilm`; return the options of a run in ONNX Runtime that quantises to int8."""
    return minilm(folder) | {"speedup": (4.0,), "engine": "onnxruntime", "quantize": "int8"}


def distilbert(folder: Path) -> dict[str, Any]:
    """Save a DistilBERT with 4 layers of width 256; return the options of a run that lowers its latency."""
    tokenizer = AutoTokenizer.from_pretrained(pretrained())
    torch.manual_seed(0)
    config = DistilBertConfig(vocab_size=len(tokenizer), dim=256, hidden_dim=1024, n_layers=4, n_heads=8)
    ziplm.save(DistilBertForSequenceClassification(config), folder / "dense", tokenizer)
    return _sentences(folder) | {"speedup": (3.0,), "regime": "latency", "profile_seconds": 30.0}


def _sentences(folder: Path) -> dict[str, Any]:
    """Write sentences from Rotten Tomatoes; return the options of a run that classifies them."""
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


MODELS = {"minilm": minilm, "gpt2": gpt2, "minilm-int8": minilm_int8, "distilbert": distilbert}


def compare(name: str, folder: Path) -> None:
    """Estimate a run, carry it out, and print the two beside each other."""
    more = MODELS[name](folder)
    files = {kind: str(next(folder.glob(f"{kind}.*"))) for kind in ("train", "validation")}
    options = Options(
        model=str(folder / "dense"),
        output=str(folder / "run"),
        train_file=files["train"],
        validation_file=files["validation"],
        **(FEW | more),
    )
    run = Run(options.output)
    _, estimates = estimate_run(load_start(options, run), run, options.targets())
    estimated = estimates.by_stage()
    ziplm.compress(options=options)
    taken = run.cpu_seconds
    rounds = {target.name: _fit_rounds(run, target.name) for target in options.targets()}
    estimated["fit"] *= sum(rounds.values()) / (FIT_ROUNDS * len(rounds))
    rows = [
        [stage, f"{guess:.1f}", f"{spent:.1f}", f"{guess / spent:.2f}"]
        for stage, spent in taken.items()
        if (guess := estimated.get(stage, 0.0)) or spent
    ]
    sums = sum(estimated.values()), sum(taken.values())
    rows.append(["total", f"{sums[0]:.1f}", f"{sums[1]:.1f}", f"{sums[0] / sums[1]:.2f}"])
    note = (
        f"wall time was {estimates.waiting:.1f} times the CPU time during the probe; rounds of fit: {rounds}"
    )
    print_table(f"{name}: CPU seconds", ["stage", "estimate", "taken", "estimate / taken"], rows, note)


def _fit_rounds(run: Run, target: str) -> int:
    """Return how many models the fit of a target has measured, which no dry run can know."""
    return len(read_json(run.target_state(target) / "fitted.json")["rounds"])


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
