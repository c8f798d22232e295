"""Narrower heads where queries and keys must keep their width, as with rotary embeddings: would it save time?

Only values could become narrower there. Attention kernels for CPUs take values as wide as the queries;
narrower ones are computed by a slower kernel, or padded with zeros before it. Both are compared with whole
heads, and with heads whose queries, keys and values are all narrower.
"""

import argparse

import torch
from harness import CLOCK_HELP, announce, print_table
from latency_profiler import compare
from torch import nn
from torch.nn import functional

BATCH, TOKENS, HIDDEN = 8, 128, 384
HEADS, WIDTH, NARROW = (12, 9, 6, 3, 1), 32, (24, 16)


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


def main() -> None:
    """Measure all attentions in the same rounds, and print their times over those of whole heads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu", help=CLOCK_HELP)
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of the measurement (60)")
    options = parser.parse_args()
    announce("ziplm, narrower values", "ziplm", "torch", "transformers")
    whole = (WIDTH, WIDTH, False)  # width of queries and keys, width of values, whether values are padded
    shapes = {"whole heads": whole}
    for narrow in NARROW:
        shapes[f"values of {narrow}"] = (WIDTH, narrow, False)
        shapes[f"padded values of {narrow}"] = (WIDTH, narrow, True)
        shapes[f"heads of {narrow}"] = (narrow, narrow, False)
    variants = {
        f"{heads} {name}": Attention(heads, *shape).eval()
        for heads in HEADS
        for name, shape in shapes.items()
    }
    inputs = torch.randn(BATCH, TOKENS, HIDDEN)
    times = compare(variants, inputs, clock=options.clock, threads=1, max_seconds=options.seconds)
    rows = [
        [
            name,
            *(f"{times.ratio(f'{heads} {name}', f'{heads} whole heads').value:.2f}" for heads in HEADS),
        ]
        for name in list(shapes)[1:]
    ]
    title = f"time over that of as many heads of {WIDTH}, batch {BATCH} x {TOKENS}, one thread"
    print_table(title, ["", *(f"{heads} heads" for heads in HEADS)], rows)


if __name__ == "__main__":
    main()
