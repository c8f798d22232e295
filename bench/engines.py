"""ziplm: what quantisation and a latency table cost in ONNX Runtime, for all-MiniLM-L6-v2.

    nox -s bench -- engines

Quantisation: dynamic scales of activations against static ones, fixed from sentences of this repository's
documentation. Speeds refer to the file in float32; the error is the mean cosine distance of mean-pooled
embeddings, on sentences that did not calibrate. Latency table: its CPU time with exports included, as
`ziplm profile` measures it.
"""

import argparse
import re
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from harness import announce, print_table
from latency_profiler import LoadedModel, compare, load_onnx, quantize_onnx, quantize_onnx_static
from models import pretrained
from transformers import AutoModel, AutoTokenizer, PreTrainedModel
from ziplm.options.setting import Setting
from ziplm.stages.export import export_onnx
from ziplm.stages.export_quantize import calibration_samples
from ziplm.stages.profile import latency_table

SHAPES = ((8, 128), (1, 32))
CALIBRATION, JUDGING = 96, 32


def sentences() -> list[str]:
    """Return sentences of the documentation."""
    pages = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    words = " ".join(page.read_text(encoding="utf-8") for page in pages)
    found = [found.strip() for found in re.findall(r"[A-Z][^.|`#\[\]<>]{40,200}\.", words)]
    return found[: CALIBRATION + JUDGING]


def pooled_distance(exact: LoadedModel, other: LoadedModel, sample: dict[str, torch.Tensor]) -> float:
    """Return the cosine distance between the mean-pooled outputs of two files."""
    first, second = (
        torch.from_numpy(model.run(sample)[model.outputs[0]]).mean(1) for model in (exact, other)
    )
    return 1 - torch.cosine_similarity(first, second).item()


def compare_scales(model: PreTrainedModel, samples: list[dict[str, torch.Tensor]], folder: Path) -> None:
    """Print speed and error of both kinds of quantisation."""
    exact = export_onnx(model, folder / "float32.onnx")
    files = {
        "float32": exact,
        "int8, dynamic": quantize_onnx(exact, folder / "dynamic.onnx"),
        "int8, static": quantize_onnx_static(exact, folder / "static.onnx", samples[:CALIBRATION]),
    }
    loaded = {name: load_onnx(file, threads=1) for name, file in files.items()}
    rows: dict[str, list[object]] = {n: [file.stat().st_size // 10**6] for n, file in files.items()}
    judges = samples[CALIBRATION:]
    for name, other in loaded.items():
        distances = [pooled_distance(loaded["float32"], other, sample) for sample in judges]
        rows[name].append(f"{abs(sum(distances)) / len(distances):.4f}")
    for batch, length in SHAPES:
        ids = torch.full((batch, length), 2000)
        values = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "token_type_ids": torch.zeros_like(ids),
        }
        runs = {name: partial(other.run, values) for name, other in loaded.items()}
        compared = compare(runs, clock="cpu", threads=1, max_seconds=40)
        for name in loaded:
            rows[name].append(str(compared.speedup(name)))
    shapes = [f"speed at {batch} x {length}" for batch, length in SHAPES]
    print_table(
        "quantisation", ["file", "MB", "cosine distance", *shapes], [[n, *r] for n, r in rows.items()]
    )


def time_tables(model: PreTrainedModel) -> None:
    """Print how long a latency table takes."""
    rows = []
    for batch, length in SHAPES:
        for quantize in (None, "int8"):
            setting = Setting(
                engine="onnxruntime",
                quantize=quantize,
                batch_size=batch,
                lengths=(length,),
                threads=1,
                clock="cpu",
            )
            start = time.process_time()
            table = latency_table(model, setting)
            taken = time.process_time() - start
            sizes = sum(len(curve.sizes) for curve in table.curves.values())
            rows.append([f"{batch} x {length}", quantize or "float32", sizes, f"{taken:.0f}"])
    print_table("latency tables", ["inputs", "type", "sizes", "CPU seconds, exports included"], rows)


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    announce("engines", "ziplm", "latency-profiler", "onnxruntime", "torch")
    model = AutoModel.from_pretrained(pretrained()).eval()
    samples = calibration_samples(model, AutoTokenizer.from_pretrained(pretrained()), sentences())
    with tempfile.TemporaryDirectory() as folder:
        compare_scales(model, samples, Path(folder))
    time_tables(model)


if __name__ == "__main__":
    main()
