"""ziplm, search: the time of one evaluation of a candidate, relative to a forward pass of the dense model.

The model has the shape of BERT-base and random weights; there are 128 samples of 128 tokens, and the target
is half of the parameters. All evaluations of a direct search are timed, including everything they build.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch
from harness import announce, print_table
from obs_structured import Trace, prune
from spdy_search import Problem, search
from transformers import AutoModelForSequenceClassification, BertConfig, PreTrainedModel
from ziplm.architectures.registry import architecture_of
from ziplm.stages.levels import branch_levels
from ziplm.stages.stitch import CandidateLoss, Stitcher
from ziplm.tasks import make_task


def traces_of(model: PreTrainedModel) -> dict[str, Trace]:
    """Return traces by magnitude, which are quick to compute; using them takes as long as using others."""
    architecture = architecture_of(model)
    generator = torch.Generator().manual_seed(0)
    traces = {}
    for branch in architecture.branches(model):
        weight = architecture.weight(model, branch).detach()
        inputs = torch.randn(2 * weight.shape[1], weight.shape[1], generator=generator)
        hessian = 2 * inputs.T @ inputs / len(inputs)
        traces[branch.name] = prune(weight, hessian, branch.group_size, method="magnitude")
    return traces


def main() -> None:
    """Time evaluations and dense forward passes alternately."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=30, help="evaluations (30), about 20 s each")
    parser.add_argument("--layers", type=int, default=12, help="layers of the model (12)")
    options = parser.parse_args()
    announce("ziplm, seconds per evaluation of the search", "ziplm", "torch", "transformers")
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=options.layers)
    model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
    model.eval()  # type: ignore[no-untyped-call]
    tokens = torch.randint(1000, 20000, (128, 128)).tolist()
    features = [{"input_ids": sample, "attention_mask": [1] * len(sample)} for sample in tokens]
    stitcher = Stitcher(model, traces_of(model))
    task = make_task("classification")
    candidate_loss = CandidateLoss(stitcher, task, features)
    batches = [batch for _, batch in task.batches(features, 32)]

    levels = branch_levels(architecture_of(model), model)
    matrices = {"attention": 4, "ffn": 2}
    costs = [[size.groups * size.width * matrices[own.branch.kind] for size in own.sizes] for own in levels]
    priors = [[(1 - size.groups / own.branch.groups) ** 2 for size in own.sizes] for own in levels]
    problem = Problem(costs, priors, sum(row[0] for row in costs) / 2)
    dense: list[float] = []
    candidates: list[float] = []

    def loss(chosen: Any) -> float:
        if len(candidates) % 10 == 0:
            start = time.process_time()
            with torch.inference_mode():
                for batch in batches:
                    model(**batch)
            dense.append(time.process_time() - start)
        start = time.process_time()
        value = candidate_loss([own.sizes[int(level)] for own, level in zip(levels, chosen, strict=True)])
        candidates.append(time.process_time() - start)
        print(f"evaluation {len(candidates)}: {candidates[-1]:.1f} s, dense {dense[-1]:.1f} s", flush=True)
        return value

    search(problem, loss, options.evaluations)
    forward = float(np.median(dense))
    print_table(
        f"BERT-base shape, {options.layers} layers, 128 x 128 tokens, 2x by parameters, CPU time",
        ["", "seconds", "dense forward passes"],
        [
            ["dense forward pass", f"{forward:.2f}", "1"],
            ["mean of all evaluations", f"{np.mean(candidates):.2f}", f"{np.mean(candidates) / forward:.2f}"],
            ["median evaluation", f"{np.median(candidates):.2f}", f"{np.median(candidates) / forward:.2f}"],
            ["first evaluation", f"{candidates[0]:.2f}", f"{candidates[0] / forward:.2f}"],
        ],
        note=f"{len(candidates)} evaluations; goal: below 0.6",
    )


if __name__ == "__main__":
    main()
