"""ziplm: predicted and measured time of text generation."""

import argparse
from collections.abc import Callable

import torch
import ziplm
from harness import CLOCK_HELP, announce, print_table
from obs_structured import prune
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel
from ziplm.architectures.base import Branch
from ziplm.architectures.registry import architecture_of
from ziplm.options.setting import Setting
from ziplm.stages.measure import compare_models
from ziplm.stages.profile import latency_table

SHAPES: dict[str, Callable[[Branch], int]] = {  # groups that a branch loses
    "half of everything": lambda branch: branch.groups // 2,
    "half of the branches": lambda branch: branch.groups if branch.layer % 2 else 0,
}


def smaller(model: PreTrainedModel, removed: Callable[[Branch], int]) -> PreTrainedModel:
    """Return the model without the given number of groups of each branch, those with the smallest weights."""
    architecture = architecture_of(model)
    branches = architecture.branches(model)
    traces = []
    for branch in branches:
        weight = architecture.weight(model, branch)
        traces.append(prune(weight, torch.eye(weight.shape[1]), branch.group_size, method="magnitude"))
    return ziplm.shrink(model, [removed(branch) for branch in branches], traces)


def sizes(model: PreTrainedModel) -> dict[str, list[int]]:
    """Return the groups of all branches by kind, as a latency table takes them."""
    found: dict[str, list[int]] = {}
    for branch in architecture_of(model).branches(model):
        found.setdefault(branch.kind, []).append(branch.groups)
    return found


def main() -> None:
    """Profile a GPT2, shrink it in two ways, and time how it generates text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu", help=CLOCK_HELP)
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of each measurement (60)")
    parser.add_argument("--new-tokens", type=int, default=16, help="tokens to generate (16)")
    parser.add_argument("--prompt-length", type=int, nargs="+", default=[16, 32, 64], help="prompts")
    options = parser.parse_args()
    announce("ziplm, generation with GPT2 of 12 layers, 768 hidden, random weights", "ziplm", "torch")
    torch.manual_seed(0)
    dense = GPT2LMHeadModel(GPT2Config()).eval()  # type: ignore[no-untyped-call]
    setting = Setting(
        threads=1,
        clock=options.clock,
        regime="generate",
        lengths=tuple(options.prompt_length),
        new_tokens=options.new_tokens,
    )
    models = {"dense": dense, **{name: smaller(dense, removed) for name, removed in SHAPES.items()}}
    table = latency_table(dense, setting, max_seconds=options.seconds)
    print(table, "\n")
    result = compare_models(models, setting, max_seconds=options.seconds)
    rows = []
    for name, model in models.items():
        seconds, speedup = table.predict(sizes(model)), table.speedup(sizes(model))
        measured = result.speedup(name)
        rows.append(
            [
                name,
                f"{seconds * 1e3:.1f}",
                f"{result[name].seconds * 1e3:.1f}",
                f"{options.new_tokens / result[name].seconds:.1f}",
                f"{speedup:.2f}x",
                f"{measured.value:.2f}x",
                f"{speedup / measured.value:.3f}",
            ]
        )
    print_table(
        f"{options.new_tokens} new tokens, one thread, {options.clock} clock",
        ["", "predicted ms", "ms", "tokens/s", "predicted speedup", "speedup", "predicted / measured"],
        rows,
        note=str(table.environment),
    )


if __name__ == "__main__":
    main()
