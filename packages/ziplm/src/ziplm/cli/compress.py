"""``ziplm compress``: a model and its targets in, a family of smaller models out."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ziplm.cli.options import data_options, environment_options, given, option, training_options
from ziplm.compress import compress as run_compress
from ziplm.config import PRIORS, SEARCHES, SELECTIONS, Config, merged, read_options
from ziplm.plan import plan
from ziplm.progress import Bars
from ziplm.report import print_family
from ziplm.workers import own_rank

EXAMPLES = """
\b
Examples:
  ziplm compress textattack/bert-base-uncased-SST-2 --task sst2 --speedup 2 --speedup 4 -o runs/sst2
  ziplm compress models/mine --task classification --train-file train.csv --validation-file dev.csv \\
      --recover 0.99 -o runs/mine
  ziplm compress gpt2 --task causal-lm --train-file train.txt --validation-file valid.txt --speedup 1.5 \\
      --sequence-length 512 --batch-size 4 -o runs/gpt2
  ziplm compress --config runs/sst2/config.toml
  torchrun --nproc_per_node 2 -m ziplm compress --config runs/sst2/config.toml
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", required=False)
@click.option("--task", help="Such as sst2, classification or causal-lm; see `ziplm evaluate --help`.")
@option("--task-option", multiple=True, metavar="NAME=VALUE", help="Setting of the task, as stride=64.")
@option("--speedup", multiple=True, type=float, metavar="X", help="Times as fast as now; repeatable.")
@option("--latency-ms", multiple=True, type=float, metavar="MS", help="Milliseconds; repeatable.")
@option("--recover", multiple=True, type=float, metavar="SHARE", help="Fastest that keeps it, e.g. 0.99.")
@option("--params", multiple=True, type=float, metavar="N", help="Most parameters of the layers.")
@option("--flops", multiple=True, type=float, metavar="N", help="Most FLOPs of the layers in a forward pass.")
@option("--bytes", multiple=True, type=float, metavar="N", help="Most bytes of the layers' weights.")
@option("--sparsity", multiple=True, type=float, metavar="SHARE", help="Of the layers' parameters to remove.")
@option("--round-to", type=click.IntRange(min=1), help="Widths are multiples of this, such as 8, 16, 64.")
@option("--uniform/--no-uniform", help="Give all layers the same size.")
@click.option("-o", "--output", metavar="RUN", help="Folder of the run; goes on if it is there.")
@click.option("--config", "config_file", type=Path, metavar="FILE", help="TOML with the same names.")
@click.option("--dry-run", is_flag=True, help="Say what can be reached and what it would take.")
@data_options
@environment_options
@option("--latency-table", metavar="FILE", help="Measured elsewhere: nothing is measured here.")
@option("--method", type=click.Choice(["default", "ziplm"]), help="ziplm: exactly as in the paper.")
@option("--calibration-samples", type=click.IntRange(min=1), help="[default: 2048; language models 512]")
@option("--search-samples", type=click.IntRange(min=1), help="For the search, and again to judge it.")
@option("--gradients/--no-gradients", help="Find out what the loss feels: one backward pass.")
@option("--selection", type=click.Choice(SELECTIONS), help="How columns are chosen.")
@option("--update/--no-update", help="Correct the columns left for those that go.")
@option("--centred/--not-centred", help="Let biases take over the mean of what goes.")
@option(
    "--prior",
    type=click.Choice(PRIORS),
    help="What levels are expected to harm; auto: all but own.",
)
@option("--search", type=click.Choice(SEARCHES), help="How levels are searched for.")
@option("--evaluations", type=click.IntRange(min=0), help="Of the search; 1000 with --method ziplm.")
@option("--loss", type=click.Choice(["kl", "task"]), help="Which loss the search looks at.")
@option("--refit/--no-refit", help="Fit what is left to the dense model.")
@option("--measure-seconds", type=float, help="Longest time of one measurement.")
@option("--profile-seconds", type=float, help="Longest time of the latency table.")
@option("--calibration-batch-size", type=click.IntRange(min=1), help="Samples at a time.")
@option("--memory-gb", type=float, help="For Hessians; with less, more passes are made.")
@training_options
@option("--seed", type=int, help="Of everything that is random.")
@click.pass_context
def compress(context: click.Context, /, config_file: Path | None, dry_run: bool, **_: Any) -> None:
    """Make MODEL faster by stated factors, as accurate as can be, and measure that it is.

    MODEL is a folder or a name on the hub. The run folder gets one ordinary checkpoint for each target. The
    same command goes on where an interrupted one was.
    """
    options = read_options(config_file) if config_file else {}
    said = {name: value for name, value in given(context).items() if name not in ("config_file", "dry_run")}
    config = Config.of(merged(options, said))
    console = Console(highlight=False)
    if dry_run and own_rank() == 0:
        console.print(plan(config, Bars()), markup=False, soft_wrap=True)
    if dry_run:
        return
    made = run_compress(config=config, progress=Bars())
    if own_rank() == 0:
        print_family(made, console)
