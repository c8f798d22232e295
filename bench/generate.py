"""ziplm: the time of text generation, as the latency table predicts it and as it is measured."""

import argparse
from collections.abc import Callable

import torch
import ziplm
from harness import announce, print_table
from obs_structured import prune
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel
from ziplm.architectures.base import Branch
from ziplm.options.setting import Setting
from ziplm.stages.measure import compare_models
from ziplm.stages.profile import latency_table

SHAPES: dict[str, Callable[[Branch], int]] = {  # groups that a module loses
    "half of everything": lambda module: module.groups // 2,
    "half of the modules": lambda module: module.groups if module.layer % 2 else 0,
}


def smaller(model: PreTrainedModel, removed: Callable[[Branch], int]) -> PreTrainedModel:
    """The model without so many groups of each module, chosen by the size of their weights."""
    adapter = ziplm.architecture_of(model)
    modules = adapter.modules(model)
    traces = []
    for module in modules:
        weight = adapter.weight(model, module)
        traces.append(prune(weight, torch.eye(weight.shape[1]), module.group_size, method="magnitude"))
    return ziplm.shrink(model, [removed(module) for module in modules], traces)


def sizes(model: PreTrainedModel) -> dict[str, list[int]]:
    """Groups of all modules by kind, as a table wants them."""
    found: dict[str, list[int]] = {}
    for module in ziplm.architecture_of(model).modules(model):
        found.setdefault(module.kind, []).append(module.groups)
    return found


def main() -> None:
    """Profile a GPT2, shrink it in two ways, generate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu", help="cpu for shared machines")
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time of each measurement")
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--prompt-length", type=int, nargs="+", default=[16, 32, 64])
    options = parser.parse_args()
    announce("ziplm, generation with GPT2 of 12 layers, 768 hidden, random weights", "ziplm", "torch")
    torch.manual_seed(0)
    dense = GPT2LMHeadModel(GPT2Config()).eval()  # type: ignore[no-untyped-call]
    setting = Setting(
        threads=1,
        clock=options.clock,
        regime="generate",
        prompt_lengths=tuple(options.prompt_length),
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
