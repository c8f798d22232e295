"""Tiny models whose heads are wide enough to become narrower, and traces that do so."""

import torch
from obs_structured import narrow_heads, narrow_scores, prune
from transformers import PreTrainedModel
from ziplm.architectures.attention_trace import AttentionTrace, BranchTrace
from ziplm.architectures.registry import architecture_of
from ziplm_models import SETTINGS, make_traces, prefix_of, tiny_model

ROTARY = ("ModernBert", "Llama", "Mistral", "Qwen2", "Qwen3")
"""Prefixes of the architectures with rotary embeddings, whose heads keep their width."""
NARROWING = [prefix for prefix in SETTINGS if prefix not in ROTARY]


def wide_model(name: str, attention: str = "eager", **settings: object) -> PreTrainedModel:
    """Return a tiny model with 2 heads of width 8 in each layer."""
    heads = "n_head" if prefix_of(name) == "GPT2" else "n_heads"
    heads = heads if prefix_of(name) in ("GPT2", "DistilBert") else "num_attention_heads"
    return tiny_model(name, attention, **{heads: 2, **settings})


def make_width_traces(model: PreTrainedModel) -> list[BranchTrace | None]:
    """Return a trace of every remaining branch, made from random inputs; attentions can become narrower."""
    architecture = architecture_of(model)
    generator = torch.Generator().manual_seed(4)

    def moments(tokens: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        mixed = torch.randn(columns, columns, generator=generator)
        inputs = torch.randn(tokens, columns, generator=generator) @ mixed + 0.5
        return (inputs.T @ inputs / tokens).double(), inputs.mean(0).double()

    traces: list[BranchTrace | None] = list(make_traces(model))
    for index, branch in enumerate(architecture.branches(model)):
        if branch.part != "attention" or not branch.groups:
            continue
        second, mean = moments(4 * branch.columns, branch.columns)
        weight, centred = architecture.weight(model, branch), architecture.bias(model, branch) is not None
        given = {"mean": mean if centred else None, "damping": 0.01}
        widths = [moments(100, branch.group_size) for _ in range(2 * branch.groups)]
        queries, keys = (torch.stack([second for second, _ in widths[place::2]]) for place in range(2))
        key_mean = torch.stack([mean for _, mean in widths[1::2]])
        traces[index] = AttentionTrace(
            prune(weight, 2 * second, branch.group_size, **given),
            narrow_heads(weight, 2 * second, branch.group_size, **given),
            narrow_scores(queries, keys, key_mean),
        )
    return traces
