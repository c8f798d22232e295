"""ziplm, one-shot: the default against whole heads, uniform pruning and the paper, at equal speed.

    python bench/oneshot.py sst2 --data FOLDER            # takes minutes to hours; resumes if interrupted
    python bench/oneshot.py sst2 --data FOLDER --report   # only prints the results so far
    python bench/oneshot.py sst2 --data FOLDER --methods default --against CHECKOUT   # beside other code

The dense models and FOLDER are those of bench/models.py. All methods use the same latency table and the same
targets, and no model is retrained. Results are kept under build/oneshot, one file for each model.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import ziplm
from checkouts import compress_arguments, start_command
from gradual_parts import copy
from harness import announce
from latency_profiler import LatencyTable
from models import BUILD
from obs_structured import Trace
from oneshot_experiments import EXPERIMENTS, METHODS, SAME_TRACES
from oneshot_judge import Judge
from oneshot_report import report
from packaged_models import MAKERS, packaged_model
from run_inputs import dense_model, sentences
from spdy_search import search
from ziplm.cli.demos import Reviews
from ziplm.files import read_json, write_json, written_whole
from ziplm.options.options import Options
from ziplm.pipelines import common_steps
from ziplm.pipelines.inputs import Inputs, keep_inputs
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.oneshot import prune_model
from ziplm.pipelines.values import Pruned, Start
from ziplm.runs.folder import Run
from ziplm.runs.opening import open_run
from ziplm.runs.progress import Bars
from ziplm.stages.calibrate import gather_statistics
from ziplm.stages.choices import Priors
from ziplm.stages.priors import branch_priors
from ziplm.stages.profile import latency_table
from ziplm.stages.prune import prune_branch
from ziplm.stages.traces import InOrder
from ziplm.tasks import make_task

PRIORS = ("factored", "whole heads", "scalar", "stream", "own")
UNIFORM = {"magnitude": "uniform-magnitude", "obs": "uniform-obs"}  # names in the tables, by selection method
MANY_TOKENS = 10**9  # enough for the smaller of the two default dampings


class Bench:
    """One experiment with one seed."""

    def __init__(
        self, name: str, data: Path, seed: int, most: int | None = None, targets: Sequence[float] = ()
    ) -> None:
        experiment = EXPERIMENTS[name]
        self.experiment = replace(
            experiment, most=most or experiment.most, targets=tuple(targets) or experiment.targets
        )
        self.folder = BUILD / "oneshot" / name
        self.seed = seed
        self.places = {"build": str(BUILD), "data": str(data)}
        model = self.experiment.model
        self.model_folder = packaged_model(model) if model in MAKERS else dense_model(model, data)

    def options(self, method: str) -> Options:
        """Return the options of a run that measures nothing, because all methods share a latency table."""
        first = next(iter(self.experiment.splits.values()))
        return Options(
            model=str(self.model_folder),
            task=self.experiment.task,
            output=str(self.folder / f"seed{self.seed}" / method),
            speedup=self.experiment.targets,
            train_file=self.experiment.train.format(**self.places),
            validation_file=first.format(**self.places),
            latency_table=str(self.table_file()),
            input_length=self.experiment.sequence_length,
            threads=1,
            search_samples=self.experiment.search_samples,
            seed=self.seed,
            **METHODS.get(method, {}),
            **self.experiment.options,
        )

    def table_file(self) -> Path:
        """Return the latency table of the dense model; it is measured once, in CPU time."""
        path = self.folder.with_name(self.experiment.model) / "latency.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            setting = Options(
                model="m",
                task="t",
                output="o",
                threads=1,
                clock="cpu",
                input_length=self.experiment.sequence_length,
            ).setting
            model = make_task(self.experiment.task).load_model(str(self.model_folder))  # without unused heads
            latency_table(model, setting, max_seconds=120).save(path)
        return path

    def run(self, methods: Sequence[str]) -> None:
        """Make and judge every model that is missing."""
        options = self.options("default")
        with opened(options) as run:
            start = load_start(options, run)
            table = common_steps.profile(start, run)
            files = {name: path.format(**self.places) for name, path in self.experiment.splits.items()}
            judge = Judge(start, files, self.experiment.most)
            if "priors" in methods:
                choices = common_steps.make_choices(start, start.dense, table)
                pruned = prune_model(start, start.dense, choices, start.samples, options.seed, run)
                self._compare_priors(pruned, judge)
            if "uniform" in methods:
                self._prune_uniformly(start, table, judge)
        for method in METHODS:
            if method in methods:
                if method in SAME_TRACES:
                    self._share_traces(method)
                for member in ziplm.compress(options=self.options(method), progress=True):
                    target = float(member.metrics["target"]["value"])
                    self._keep_row(method, target, partial(judge.checkpoint, member.folder))

    def run_checkout(self, checkout: Path) -> None:
        """Make and judge the models of the code of another checkout, as the rows of method "checkout"."""
        options = self.options("checkout")
        rows = {target: self._row_file("checkout", target) for target in self.experiment.targets}
        if all(path.exists() for path in rows.values()):
            return
        common = ("speedup", "output", "train_file", "validation_file", "latency_table", "search_samples")
        given = {name: getattr(options, name) for name in (*common, "threads", "seed")}
        given["latency_table"] = str(self._older_table())
        made = start_command(checkout, *compress_arguments(self.model_folder, self.experiment.task, given))
        if made.wait():
            raise SystemExit(f"the run with the code of {checkout} failed")
        with opened(self.options("default")) as run:
            files = {name: path.format(**self.places) for name, path in self.experiment.splits.items()}
            judge = Judge(load_start(self.options("default"), run), files, self.experiment.most)
        for target in rows:
            self._keep_row(
                "checkout", target, partial(judge.checkpoint, Path(options.output) / f"{target:g}x")
            )

    def _older_table(self) -> Path:
        """Return a copy of the latency table without what version 0.1 does not know."""
        table = read_json(self.table_file())
        path = self.table_file().with_name("latency-0.1.json")
        del table["environment"]["quantization"]
        table["curves"] = {name: curve for name, curve in table["curves"].items() if "@" not in name}
        write_json(path, table)
        return path

    def _share_traces(self, method: str) -> None:
        """Copy what the default's search starts from, if its run exists, which saves the time to prune."""
        default = Path(self.options("default").output) / "state"
        with opened(self.options(method)) as run:
            for name in ("fisher.safetensors", "traces", "priors"):
                if (default / name).exists() and not (run.state / name).exists():
                    copy(default / name, run.state / name)

    def _compare_priors(self, pruned: Pruned, judge: Judge) -> None:
        """Solve once with each prior, without a search."""
        for prior in PRIORS:
            for target in self.experiment.targets:
                levels = pruned.choices.solve(prior, {"seconds": pruned.choices.dense_seconds / target})
                sizes = pruned.choices.chosen(levels)
                judged = partial(judge.shrunk, sizes, pruned.traces_in_order(), few=True)
                self._keep_row(f"prior-{prior}", target, judged)

    def _prune_uniformly(self, start: Start, table: LatencyTable, judge: Judge) -> None:
        """Remove the same share of every branch, chosen by magnitude or by OBS.

        The weights that stay are updated by least squares in both cases.
        """
        targets = self.experiment.targets
        if all(self._row_file(name, target).exists() for name in UNIFORM.values() for target in targets):
            return
        branches = start.remaining_branches(start.dense)
        statistics = gather_statistics(
            start.dense, start.task, start.samples.calibration, branches, {}, batch_size=32
        )
        for method, name in UNIFORM.items():
            traces: dict[str, Trace] = {}
            priors: dict[str, Priors] = {}
            for branch in branches:
                own = statistics[branch.name]
                trace = prune_branch(start.dense, branch, own, None, MANY_TOKENS, method=method)
                traces[branch.name] = trace
                priors[branch.name] = branch_priors(start.dense, branch, own, None, trace)
            choices = common_steps.make_choices(start, start.dense, table, priors)
            in_order = InOrder(traces, [branch.name for branch in branches])
            for target in targets:
                problem = choices.problem("own", {"seconds": choices.dense_seconds / target})
                levels = search(problem, lambda _: 0.0, 1, method="uniform").levels
                sizes = choices.chosen(levels)
                self._keep_row(name, target, partial(judge.shrunk, sizes, in_order))

    def _row_file(self, method: str, target: float) -> Path:
        return self.folder / f"seed{self.seed}" / "rows" / f"{method}-{target:g}x.json"

    def _keep_row(self, method: str, target: float, judge: Callable[[], dict[str, float]]) -> None:
        """Judge a model and write the row of results, unless the row exists."""
        path = self._row_file(method, target)
        if not path.exists():
            write_json(path, {"method": method, "target": target, "seed": self.seed, **judge()})
            print(path.name, {k: v for k, v in read_json(path).items() if isinstance(v, float)}, flush=True)


@contextmanager
def opened(options: Options) -> Iterator[Run]:
    """Open a run folder that says which model and data it is of, without which it cannot be resumed."""
    with open_run(options, reporter=Bars()) as run:
        keep_inputs(run, options, Inputs())
        yield run


def write_reviews(path: Path) -> None:
    """Write IMDB's reviews as one text, unless the file exists."""
    if not path.exists():
        with written_whole(path) as temporary:
            text = "\n\n".join(review.replace("<br />", " ") for review in Reviews.of("imdb").texts[:4000])
            temporary.write_text(text, encoding="utf-8")


def main() -> None:
    """Run what is missing, then print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=list(EXPERIMENTS))
    parser.add_argument("--data", type=Path, required=True, help="folder with the published datasets")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds (0 1 2)")
    methods = ["priors", "uniform", *METHODS]
    parser.add_argument(
        "--methods", nargs="+", choices=methods, default=methods, help="methods to compare (all)"
    )
    parser.add_argument("--targets", type=float, nargs="+", default=(), help="speedups (all)")
    parser.add_argument("--most", type=int, help="samples of each split that models are judged on (all)")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="also run the code of a checkout")
    parser.add_argument("--report", action="store_true", help="print the results so far, run nothing")
    options = parser.parse_args()
    announce(f"ziplm, one-shot: {options.experiment}", "ziplm", "torch", "transformers")
    if not options.report:
        write_reviews(BUILD / "data" / "imdb.txt")
        sentences(options.data)
        for seed in options.seeds:
            bench = Bench(options.experiment, options.data, seed, options.most, options.targets)
            bench.run(options.methods)
            if options.against:
                bench.run_checkout(options.against)
    report(options.experiment)


if __name__ == "__main__":
    main()
