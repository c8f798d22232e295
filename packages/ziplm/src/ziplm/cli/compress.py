"""``ziplm compress``: a model and its targets in, a family of smaller models out."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import rich_click as click
from rich.text import Text

from ziplm.cli.options import given, names_in, options
from ziplm.options.fields import SECTIONS
from ziplm.options.options import Options
from ziplm.options.paths import relative_to
from ziplm.options.toml import merged, read_options
from ziplm.options.values import require

EXAMPLES = Text(
    r"""Examples:
  ziplm compress textattack/bert-base-uncased-SST-2 --task sst2 \
      --speedup 2 --speedup 4 -o runs/sst2
  ziplm compress models/mine --task classification --train-file train.csv \
      --validation-file dev.csv --recover 0.99 -o runs/mine
  ziplm compress models/mine --task classification --train-file train.csv \
      --validation-file dev.csv --regime latency --input-length 20 \
      --input-length 60 --speedup 3 --dry-run -o runs/mine
  ziplm compress gpt2 --task causal-lm --train-file train.txt \
      --validation-file valid.txt --speedup 1.5 --input-length 512 \
      --batch-size 4 -o runs/gpt2
  ziplm compress --config runs/sst2/config.toml
  torchrun --nproc_per_node 2 -m ziplm compress \
      --config runs/sst2/config.toml"""
)


@click.command(epilog=EXAMPLES)
@click.argument("model", required=False)
@options(name for name in names_in("essential") if name != "model")
@click.option(
    "--dry-run",
    is_flag=True,
    panel=SECTIONS["essential"],
    help="Show the reachable speedup and the time, memory and disk that the run would take, and stop.",
)
@options(names_in("targets"))
@options(names_in("data"))
@options(names_in("environment"))
@options(names_in("method"))
@options(names_in("training"))
@options(names_in("run"))
@click.option(
    "--config",
    "config_file",
    type=Path,
    metavar="FILE",
    panel=SECTIONS["run"],
    help="TOML file with options, such as config.toml of a run. Paths in it are relative to its folder. "
    "Options on the command line override it.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    panel=SECTIONS["run"],
    help="Print the models with their reports as JSON instead of a table.",
)
@click.option(
    "--quiet",
    is_flag=True,
    panel=SECTIONS["run"],
    help="Show no progress; run.log has it all.",
)
@click.option(
    "--verbose",
    is_flag=True,
    panel=SECTIONS["run"],
    help="Show what each stage did: numbers of samples, losses, chosen sizes, differences of the metric.",
)
@click.option("--sequence-length", type=int, hidden=True)
@click.pass_context
def compress(
    context: click.Context,
    /,
    config_file: Path | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    sequence_length: int | None,
    **_: Any,
) -> None:
    """Make MODEL faster by the given factors, as accurate as possible, and measure the result.

    MODEL is a checkpoint folder or a name on the hub. The run folder receives one ordinary checkpoint for
    each target. To resume an interrupted run, repeat the command.
    """
    said = given(context)
    for name in ("config_file", "dry_run", "as_json", "quiet", "verbose", "sequence_length"):
        said.pop(name, None)
    if sequence_length is not None:  # the name of --input-length in 0.1
        said.setdefault("input_length", (sequence_length,))
    require(not (quiet and verbose), "--quiet with --verbose", "leave out one of them")
    asked = Options.of(merged(_read_config(config_file) if config_file else {}, said))
    if dry_run:
        require(not as_json, "--json with --dry-run", "leave out one of them; a dry run prints text")
        _plan(asked, quiet)
    else:
        _compress(asked, as_json, quiet, verbose)


def _read_config(file: Path) -> dict[str, Any]:
    """Read options from a file; its relative paths are relative to the folder of the file."""
    return relative_to(file.parent, read_options(file))


def _plan(asked: Options, quiet: bool) -> None:
    from ziplm.pipelines.plan import plan
    from ziplm.runs.progress import Bars, Silent
    from ziplm.runs.workers import own_rank

    if own_rank() == 0:
        click.echo(plan(asked, Silent() if quiet else Bars()))


def _compress(asked: Options, as_json: bool, quiet: bool, verbose: bool) -> None:
    from rich.console import Console

    from ziplm.api import run_compress
    from ziplm.cli.report import report_line
    from ziplm.results.alternatives_table import print_alternatives
    from ziplm.results.table import print_family
    from ziplm.runs.progress import Bars, Silent
    from ziplm.runs.workers import own_rank

    reporter = Silent() if quiet else Bars(verbose=verbose)
    family = run_compress(asked, reporter, shlex.join(["ziplm", *sys.argv[1:]]))
    if own_rank() > 0:
        return
    if as_json:
        click.echo(json.dumps(family.to_dict(), indent=1))
    else:
        console = Console(highlight=False)
        print_family(family, console)
        if asked.alternatives:
            print_alternatives(Path(asked.output), console)
    click.echo(report_line(Path(asked.output)), err=as_json)
