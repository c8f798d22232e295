"""Narrower heads where queries and keys must keep their width, as with rotary embeddings: is it worth it?

    python bench/value_widths.py                  # the time of attentions whose values alone are narrower
    python bench/value_widths.py --data FOLDER    # also the divergence, for MiniLM-L6 on SST-2

Attention kernels for CPUs take values as wide as the queries. Narrower ones are computed by a slower kernel,
or padded with zeros before it. The dense model and FOLDER are those of bench/models.py. Queries and keys of
BERT could become narrower, too, so that three variants are compared at equal predicted time: whole heads,
narrower values and narrower heads. Levels are solved for the factored prior, without a search, in the run of
bench/oneshot.py.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from harness import CLOCK_HELP, announce, print_table
from latency_profiler import Comparison, LatencyCurve, LatencyTable, compare
from oneshot import Bench, opened
from oneshot_judge import Judge
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from ziplm.architectures.base import Size
from ziplm.pipelines import common_steps, prior_steps
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.oneshot import prune_model
from ziplm.pipelines.stored import priors_in
from ziplm.pipelines.values import Pruned, Start
from ziplm.runs.folder import TENSORS, Run
from ziplm.stages.choices import Choices
from ziplm.stages.levels import best_levels, width_curve
from ziplm.stages.shrink import mask_to_sizes

BATCH, TOKENS, HIDDEN = 8, 128, 384
HEADS, WIDTH, NARROW = (12, 9, 6, 3, 1), 32, (24, 16)
TARGETS = (2.0, 3.0, 4.0)


class Attention(nn.Module):
    """An attention whose values may be narrower than its queries and keys, and padded for the kernel."""

    def __init__(self, heads: int, width: int, value_width: int, padded: bool) -> None:
        super().__init__()
        self.heads, self.value_width, self.padding = heads, value_width, (width - value_width) * padded
        self.query, self.key = nn.Linear(HIDDEN, heads * width), nn.Linear(HIDDEN, heads * width)
        self.value = nn.Linear(HIDDEN, heads * value_width)
        self.output = nn.Linear(heads * value_width, HIDDEN)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the output, (batch, tokens, hidden)."""
        query, key, value = (
            one(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads, tokens, width)
            for one in (self.query, self.key, self.value)
        )
        if self.padding:
            value = functional.pad(value, (0, self.padding))
        mixed = functional.scaled_dot_product_attention(query, key, value)[..., : self.value_width]
        made: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return made


def measured(clock: str, seconds: float) -> Comparison:
    """Measure attentions by number of heads, width of queries and keys, width of values, and padding."""
    shapes = [(WIDTH, WIDTH, False)]
    for narrow in NARROW:
        shapes += [(WIDTH, narrow, False), (WIDTH, narrow, True), (narrow, narrow, False)]
    variants = {f"{heads} {shape}": Attention(heads, *shape).eval() for heads in HEADS for shape in shapes}
    inputs = torch.randn(BATCH, TOKENS, HIDDEN)
    return compare(variants, inputs, clock=clock, threads=1, max_seconds=seconds)  # type: ignore[arg-type]


def share(times: Comparison, heads: int, shape: tuple[int, int, bool]) -> float:
    """Return the time of an attention as a share of that of as many whole heads."""
    return times.ratio(f"{heads} {shape}", f"{heads} {(WIDTH, WIDTH, False)}").value


def table_of_values(table: LatencyTable, times: Comparison) -> LatencyTable:
    """Return the table that it would be if only values became narrower."""
    curves = {name: curve for name, curve in table.curves.items() if "@" not in name}
    whole = curves["attention"]
    for narrow in NARROW:
        shares = [
            min(share(times, heads, (WIDTH, narrow, padded)) for padded in (False, True)) for heads in HEADS
        ]
        seconds = [whole(heads) * of_whole for heads, of_whole in zip(HEADS, shares, strict=True)]
        curves[width_curve("attention", narrow)] = LatencyCurve(HEADS, tuple(seconds))
    return replace(table, curves=curves)


def solved(
    start: Start, run: Run, pruned: Pruned, table: LatencyTable, scores: bool, target: float
) -> list[Size]:
    """Return the sizes with the lowest factored prior, with or without the harm of narrower scores."""
    priors = prior_steps.gather_priors(
        start, start.dense, start.samples, pruned.traces, start.options.seed, run
    )
    if not scores:
        widths = start.head_widths(start.dense)
        for branch in start.remaining_branches(start.dense):
            stored = TENSORS.read(run.priors_file(branch.name))
            priors[branch.name] |= priors_in(stored, branch, True, len(widths.get(branch.name, ())))
    choices = common_steps.make_choices(start, start.dense, table, priors)
    levels = [
        best_levels(own, table, [priors[own.branch.name]["factored"]]) if own.may_narrow else own
        for own in choices.levels
    ]
    choices = Choices(levels, priors, table, dense_branches=start.architecture.branches(start.dense))
    return choices.chosen(choices.solve("factored", {"seconds": choices.dense_seconds / target}))


def with_own_queries(masked: PreTrainedModel, dense: PreTrainedModel) -> PreTrainedModel:
    """Give a masked BERT the dense model's queries, so that only its values are narrower."""
    for name, module in masked.named_modules():
        if name.endswith("attention.self.query"):
            module.load_state_dict(dense.get_submodule(name).state_dict())
    return masked


def divergences(data: Path, times: Comparison) -> list[list[str]]:
    """Return a row for each variant: the divergence on the development set at each target."""
    bench = Bench("sst2", data, seed=0)
    with opened(bench.options("default")) as run:
        start = load_start(bench.options("default"), run)
        table = common_steps.profile(start, run)
        choices = common_steps.make_choices(start, start.dense, table)
        pruned = prune_model(start, start.dense, choices, start.samples, start.options.seed, run)
        judge = Judge(start, {"dev": f"{data}/SST-2/dev.tsv"})
        whole = replace(table, curves={name: one for name, one in table.curves.items() if "@" not in name})
        variants = {
            "whole heads": (whole, True),
            "narrower values": (table_of_values(table, times), False),
            "narrower heads": (table, True),
        }
        rows = []
        for name, (own, scores) in variants.items():
            rows.append([name])
            for target in TARGETS:
                sizes = solved(start, run, pruned, own, scores, target)
                masked = mask_to_sizes(start.dense, sizes, pruned.traces_in_order())
                if not scores:
                    masked = with_own_queries(masked, start.dense)
                rows[-1].append(f"{judge.divergence(masked, judge.splits['dev'])[0]:.4f}")
    return rows


def main() -> None:
    """Print the times and, with data, the divergences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with the published datasets (only times)")
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu", help=CLOCK_HELP)
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of the measurement (60)")
    options = parser.parse_args()
    announce("ziplm, narrower values", "ziplm", "torch", "transformers")
    times = measured(options.clock, options.seconds)
    rows = []
    for narrow in NARROW:
        shapes = {
            "values of": (WIDTH, narrow, False),
            "padded values of": (WIDTH, narrow, True),
            "heads of": (narrow, narrow, False),
        }
        for name, shape in shapes.items():
            rows.append([f"{name} {narrow}", *(f"{share(times, heads, shape):.2f}" for heads in HEADS)])
    title = f"time over that of as many heads of {WIDTH}, batch {BATCH} x {TOKENS}, one thread"
    print_table(title, ["", *(f"{heads} heads" for heads in HEADS)], rows)
    if options.data is not None:
        headings = ["", *(f"{target:g}x" for target in TARGETS)]
        print_table("KL to the dense model, development set", headings, divergences(options.data, times))


if __name__ == "__main__":
    main()
