"""A task on made-up tokens, with a head whose score is not random, for tests of the stages."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from latency_profiler import Environment, LatencyCurve, LatencyTable
from obs_structured import Trace
from transformers import PreTrainedModel
from ziplm import adapter_for
from ziplm.heads import Batch, Classification, Head, LanguageModel
from ziplm.levels import size_grid
from ziplm.tasks import Features, Splits, Task
from ziplm_models import HEADS, VOCABULARY, WIDTH, make_traces, tiny_model

CLASSIFIER, DECODER = "BertForSequenceClassification", "GPT2LMHeadModel"
FAMILIES = [CLASSIFIER, DECODER]


class MadeUpTask(Task):
    """Examples that are token ids already."""

    name = "made-up"
    metric = "loss"
    greater_is_better = False
    class_endings = ("",)

    def __init__(self, head: Head) -> None:
        self.head = head

    def load_splits(self, *_: Any) -> Splits:
        raise AssertionError("its examples are given, not loaded")

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        raise AssertionError("no stage before the last evaluates")


class KnownScore(Head):
    """Scores a given function of what the model says about real tokens, whatever the generator."""

    def outputs(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits

    def score(
        self, model: PreTrainedModel, outputs: torch.Tensor, batch: Batch, generator: torch.Generator
    ) -> torch.Tensor:
        return self.scores(outputs, batch).sum()

    @staticmethod
    def scores(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """One number for each sample."""
        wanted = torch.linspace(-1, 1, outputs.shape[-1], dtype=outputs.dtype)
        said = outputs.log_softmax(-1) @ wanted  # (batch,) or (batch, tokens)
        return said if said.ndim == 1 else (said * batch["attention_mask"]).sum(-1)

    def divergence(self, *_: Any) -> Any:
        raise AssertionError("gradients are taken of the score alone")


def lively_model(name: str, **settings: Any) -> PreTrainedModel:
    """A tiny model whose norms keep the stream alive, so that inputs show in its outputs."""
    model = tiny_model(name, **settings)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight += 1
    return model


def task_for(name: str) -> MadeUpTask:
    """The task that a class of tiny models is for."""
    return MadeUpTask(LanguageModel("causal") if name == DECODER else Classification())


def samples(name: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Features of several lengths, with labels, in no order of length."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index in range(count):
        length = 3 + (5 * index + seed) % 7
        ids = torch.randint(5, VOCABULARY, (length,), generator=generator).tolist()
        labels = ids if name == DECODER else index % 2
        made.append({"input_ids": ids, "attention_mask": [1] * length, "labels": labels})
    return made


def one_by_one(features: Sequence[Features]) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """Samples without padding, (index, batch of one), in the order in which tasks batch them."""
    order = sorted(range(len(features)), key=lambda index: (len(features[index]["input_ids"]), index))
    for index in order:
        ids = torch.tensor([features[index]["input_ids"]])
        yield index, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def named_traces(model: PreTrainedModel) -> dict[str, Trace]:
    """Traces by name of the module."""
    modules = adapter_for(model).modules(model)
    return {m.name: t for m, t in zip(modules, make_traces(model), strict=True) if t is not None}


@contextmanager
def hooked(module: torch.nn.Module, hook: Callable[..., Any], before: bool = False) -> Iterator[None]:
    """While open, a forward hook, or one before the forward pass."""
    register = module.register_forward_pre_hook if before else module.register_forward_hook
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()


def parameters_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Copies of all parameters."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same_parameters(model: PreTrainedModel, before: Mapping[str, torch.Tensor]) -> None:
    """Nothing was changed, added or taken away."""
    now = dict(model.named_parameters())
    assert list(now) == list(before)
    assert all(torch.equal(now[name], before[name]) for name in before)


def linear_table(fixed: float = 1e-3, heads: int = HEADS, width: int = WIDTH) -> LatencyTable:
    """Times that fall in proportion to size, down to a tenth for a module that is gone."""

    def curve(sizes: list[int], seconds: float) -> LatencyCurve:
        return LatencyCurve(tuple(sizes), tuple(seconds * (0.1 + 0.9 * size / sizes[0]) for size in sizes))

    curves = {
        "attention": curve(size_grid("attention", heads), 1.3e-3),
        "ffn": curve(size_grid("ffn", width), 2e-3),
    }
    return LatencyTable(Environment.current(), fixed, curves)
