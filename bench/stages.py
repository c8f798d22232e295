"""ziplm: seconds and memory of each stage of a compression, for the shapes of BERT and GPT2.

    python bench/stages.py                       # all shapes, one after the other, each in its own process
    python bench/stages.py --shapes bert-base    # only this shape

Weights are random, and samples are few. The seconds of calibration, search and refit grow with the number of
samples; those of pruning, and the memory of all stages, hardly depend on it. bench/stages_defaults.py times a
whole run at the defaults. Memory is the kernel's high-water mark of the process during each stage, minus its
memory before the model is loaded. The limit is three times the size of the model, plus the largest Hessian
and its inverse.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import ziplm
from harness import announce, print_table, status_kilobytes
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from ziplm.runs.progress import Advance

LARGE = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
SHAPES: dict[str, Any] = {
    "bert-base": BertConfig(),
    "gpt2": GPT2Config(),
    "bert-large": BertConfig(**LARGE),  # type: ignore[arg-type]
    "gpt2-medium": GPT2Config(n_layer=24, n_embd=1024, n_head=16),
}
STAGES = {  # descriptions in the pipeline, by heading in the table
    "gradients": "calibrate: gradients",
    "inputs": "calibrate: inputs",
    "prune": "prune",
    "profile": "profile",
    "search": "search",
    "measure": "fit: measure",
    "refit": "refit",
}
LENGTH, WORDS = 128, 1000
FEW: dict[str, Any] = {
    "speedup": [2],
    "calibration_samples": 8,
    "search_samples": 4,
    "evaluations": 4,
    "calibration_batch_size": 2,
    "batch_size": 1,
    "input_length": LENGTH,
    "profile_seconds": 10.0,
    "measure_seconds": 4.0,
    "threads": 1,
    "clock": "cpu",
}


class Watch:
    """A reporter that records CPU seconds and peak memory of each stage, and the highest peak of the run."""

    def __init__(self) -> None:
        self.before = status_kilobytes("VmRSS")
        self.seconds: dict[str, float] = {}
        self.megabytes: dict[str, float] = {}
        self.most = 0.0
        self._reset()

    def peak(self) -> float:
        """Return the peak since the last call or stage in MB; it may lie between two stages."""
        found = (status_kilobytes("VmHWM") - self.before) * 1024 / 1e6
        self.most = max(self.most, found)
        self._reset()
        return found

    @contextmanager
    def stage(self, description: str) -> Iterator[Advance]:
        """Record one stage."""
        self.peak()
        start = time.process_time()
        yield lambda done, total: None
        self.seconds[description] = self.seconds.get(description, 0.0) + time.process_time() - start
        self.megabytes[description] = max(self.peak(), self.megabytes.get(description, 0.0))
        spent, peak = self.seconds[description], self.megabytes[description]
        print(f"  {description}: {spent:.1f} s, {peak:.0f} MB", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Ignore the text."""

    def _reset(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark


def run_shape(name: str, hessians: float) -> dict[str, Any]:
    """Compress a random model of a shape, and return seconds and memory of its stages."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        watch = Watch()
        size = save_random(name, folder)
        watch.peak()
        watch.most = 0.0  # the memory for making the model does not count
        task, ending = ("causal-lm", "txt") if name.startswith("gpt2") else ("classification", "csv")
        data: dict[str, Any] = {
            kind: str(folder / f"{kind}.{ending}") for kind in ("train_file", "validation_file")
        }
        (member,) = ziplm.compress(
            str(folder / "dense"),
            task,
            output=folder / "run",
            progress=watch,
            memory_gb=hessians * size / 2**30,
            **data,
            **FEW,
        )
        watch.peak()
        columns = member.metrics["dense_sizes"]["ffn"]
    return {
        "model": size / 1e6,
        "most": watch.most,
        "pair": 2 * 8 * columns**2 / 1e6,
        "seconds": {own: watch.seconds.get(stage, 0.0) for own, stage in STAGES.items()},
        "megabytes": {own: watch.megabytes.get(stage, 0.0) for own, stage in STAGES.items()},
    }


def save_random(name: str, folder: Path) -> int:
    """Save a random model with a tokenizer and data for its task, and return its size in bytes."""
    torch.manual_seed(0)
    decoder = name.startswith("gpt2")
    kind: Any = GPT2LMHeadModel if decoder else BertForSequenceClassification
    model: PreTrainedModel = kind(SHAPES[name])
    ziplm.save(model, folder / "dense", word_tokenizer(decoder))
    draw = random.Random(0)
    texts = [" ".join(f"w{draw.randrange(WORDS)}" for _ in range(LENGTH - 2)) for _ in range(64)]
    for file, part in (("train_file", texts), ("validation_file", texts[:8])):
        if decoder:
            (folder / f"{file}.txt").write_text(" ".join(part))
        else:
            rows = [f"{text},{number % 2}" for number, text in enumerate(part)]
            (folder / f"{file}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def word_tokenizer(decoder: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each word of the data."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(WORDS))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if not decoder:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")  # type: ignore[no-untyped-call]


def main() -> None:
    """Run each shape in a separate process, so that peaks of memory do not mix, and print two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="shapes to run (all)"
    )
    parser.add_argument(
        "--hessians",
        type=float,
        default=1.0,
        help="memory for Hessians, in model sizes (1)",
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_shape(options.shapes[0], options.hessians)))
        return
    announce("ziplm, stages", "ziplm", "torch", "transformers")
    found = {}
    for name in options.shapes:
        command = [
            sys.executable,
            __file__,
            "--child",
            "--shapes",
            name,
            "--hessians",
            str(options.hessians),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"finished {name}", flush=True)
    print_table(
        f"CPU seconds, one thread, {FEW['calibration_samples']} samples of {LENGTH} tokens",
        ["", *STAGES],
        [[name, *(f"{made['seconds'][stage]:.1f}" for stage in STAGES)] for name, made in found.items()],
    )
    rows = []
    for name, made in found.items():
        peak, limit = made["most"], 3 * made["model"] + made["pair"]
        stages = (f"{made['megabytes'][stage]:.0f}" for stage in STAGES)
        sizes = (f"{peak:.0f}", f"{limit:.0f}", f"{peak / limit:.2f}")
        rows.append([name, f"{made['model']:.0f}", *stages, *sizes])
    print_table(
        f"peak memory in MB, --memory-gb {options.hessians:g} times the model's size",
        ["", "model", *STAGES, "peak", "limit", "peak / limit"],
        rows,
        note="limit: three times the model's size, plus the largest Hessian and its inverse",
    )


if __name__ == "__main__":
    main()
