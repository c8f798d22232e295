"""``ziplm compress``: a model and its targets in, a family of smaller models out."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ziplm.api import compress as run_compress
from ziplm.cli.options import data_options, environment_options, given, option, training_options
from ziplm.options.options import Options
from ziplm.options.rules import PRIORS, SEARCHES, SELECTIONS
from ziplm.options.toml import merged, read_options
from ziplm.pipelines.plan import plan
from ziplm.results.table import print_family
from ziplm.runs.progress import Bars
from ziplm.runs.workers import own_rank

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
@click.option(
    "--task",
    help="Task, such as sst2, classification or causal-lm; all are listed by `ziplm evaluate --help`.",
)
@option(
    "--task-option",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting of the task, such as stride=64; repeatable.",
)
@option(
    "--speedup",
    multiple=True,
    type=float,
    metavar="X",
    help="Target speedup over the dense model; repeatable.",
)
@option(
    "--latency-ms",
    multiple=True,
    type=float,
    metavar="MS",
    help="Target time of a forward pass in milliseconds; repeatable.",
)
@option(
    "--recover",
    multiple=True,
    type=float,
    metavar="SHARE",
    help="Make the fastest model that keeps this share of the metric, such as 0.99.",
)
@option("--params", multiple=True, type=float, metavar="N", help="Limit of the layers' parameters.")
@option(
    "--flops", multiple=True, type=float, metavar="N", help="Limit of the layers' FLOPs in a forward pass."
)
@option("--bytes", multiple=True, type=float, metavar="N", help="Limit of the layers' weights in bytes.")
@option(
    "--sparsity",
    multiple=True,
    type=float,
    metavar="SHARE",
    help="Share of the layers' parameters to remove.",
)
@option(
    "--round-to", type=click.IntRange(min=1), help="Make FFN widths multiples of this, such as 8, 16 or 64."
)
@option("--uniform/--no-uniform", help="Give all layers the same size.")
@click.option("-o", "--output", metavar="RUN", help="Run folder; resumes the run if the folder exists.")
@click.option(
    "--config", "config_file", type=Path, metavar="FILE", help="TOML file with options, by the same names."
)
@click.option("--dry-run", is_flag=True, help="Show what can be reached and what it would take, and stop.")
@data_options
@environment_options
@option("--latency-table", metavar="FILE", help="Latency table measured elsewhere; nothing is measured here.")
@option(
    "--method", type=click.Choice(["default", "ziplm"]), help="ziplm uses the configuration of the paper."
)
@option(
    "--calibration-samples",
    type=click.IntRange(min=1),
    help="Samples behind the Hessians.  [default: 2048; language models 512]",
)
@option(
    "--search-samples",
    type=click.IntRange(min=1),
    help="Samples for the search, and as many again to judge its result.",
)
@option("--gradients/--no-gradients", help="Weight errors by loss gradients, which takes one backward pass.")
@option("--selection", type=click.Choice(SELECTIONS), help="How heads and columns are chosen.")
@option("--update/--no-update", help="Correct the remaining weights for those that are removed.")
@option("--centred/--not-centred", help="Let biases take over the mean output of what is removed.")
@option(
    "--prior",
    type=click.Choice(PRIORS),
    help="Estimate of the harm of each size; auto tries all except own.",
)
@option("--search", type=click.Choice(SEARCHES), help="Search method.")
@option(
    "--evaluations",
    type=click.IntRange(min=0),
    help="Number of candidates that the search evaluates; 1000 with --method ziplm.",
)
@option(
    "--loss",
    type=click.Choice(["kl", "task"]),
    help="Loss of the search: divergence from the dense model, or the task's own.",
)
@option("--refit/--no-refit", help="Fit the remaining weights to the dense model.")
@option("--measure-seconds", type=float, help="Time limit of one measurement.")
@option("--profile-seconds", type=float, help="Time limit of the latency table.")
@option(
    "--calibration-batch-size",
    type=click.IntRange(min=1),
    help="Batch size while calibrating and evaluating.",
)
@option("--memory-gb", type=float, help="Memory for Hessians; with less, calibration makes more passes.")
@training_options
@option("--seed", type=int, help="Seed of everything that is random.")
@click.pass_context
def compress(context: click.Context, /, config_file: Path | None, dry_run: bool, **_: Any) -> None:
    """Make MODEL faster by the given factors, as accurate as possible, and measure the result.

    MODEL is a checkpoint folder or a name on the hub. The run folder receives one ordinary checkpoint for
    each target. To resume an interrupted run, repeat the command.
    """
    file = read_options(config_file) if config_file else {}
    said = {name: value for name, value in given(context).items() if name not in ("config_file", "dry_run")}
    options = Options.of(merged(file, said))
    console = Console(highlight=False)
    if dry_run and own_rank() == 0:
        console.print(plan(options, Bars()), markup=False, soft_wrap=True)
    if dry_run:
        return
    family = run_compress(options=options, progress=Bars())
    if own_rank() == 0:
        print_family(family, console)
