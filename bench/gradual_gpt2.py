"""GPT2 on WikiText-2: gradual compression against smaller models of the same speed.

The dense model has six layers, and the smaller ones have two: either new layers, trained from scratch, or two
of the dense model's. Their measured speedup, which is more than 2x, is the target of the gradual run. Each
smaller model is trained for as many steps as the gradual run takes, including those of the dense model.
Models that start from layers of the dense model have its training behind them, so they are also trained for
only the remaining steps. The gradual run has a recipe chosen for this model; a run of mode finetune beside it
has the defaults.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import ziplm
from gradual_parts import FOLDER, Judge, compress, keep, rows_in, table_file
from harness import print_table
from models import BUILD, CONTEXT, RECIPES, tell
from transformers import GPT2LMHeadModel, PreTrainedModel
from ziplm.files import read_json, write_json
from ziplm.options.options import Options
from ziplm.options.training import TrainingOptions
from ziplm.stages.finetune import finetune
from ziplm.stages.measure import compare_models

NAME = "gpt2-wikitext2"
MODEL = BUILD / "models" / NAME
LAYERS = 2
LEARNING_RATE = 3e-3  # after the training of the dense model, which used 4e-3
HIGHER = 6e-3  # tried as well for two layers from scratch, which may allow more than six layers
HERE = FOLDER / "gpt2"
RECIPE = RECIPES[NAME].options
CHOSEN: dict[str, Any] = {  # for the gradual run, on the validation text
    "learning_rate": LEARNING_RATE,
    "warmup": 0.0,
    "weight_decay": RECIPE.weight_decay,
    "dropout": RECIPE.dropout,
    "keep_best": False,  # as the smaller models, it ends with the last weights
    "task_weight": 1.0,
    "logit_weight": 1.0,
    "token_weight": 0.0,
}


@dataclass(frozen=True)
class Smaller:
    """A model with fewer layers, and how it is trained."""

    kept: bool
    options: TrainingOptions

    @property
    def name(self) -> str:
        """Return a name such as ``2 layers kept, 1800 steps at 0.004``, with the highest learning rate."""
        origin = "kept" if self.kept else "from scratch"
        return f"{LAYERS} layers {origin}, {self.options.max_steps} steps at {self.options.learning_rate:g}"

    def build(self) -> PreTrainedModel:
        """Return the untrained model."""
        return with_fewer_layers(self.kept)


def with_fewer_layers(kept: bool) -> PreTrainedModel:
    """Return a GPT2 with fewer layers: a new one, or the dense model with evenly chosen layers kept."""
    dense = ziplm.load(MODEL)
    config = type(dense.config)(**{**dense.config.to_dict(), "n_layer": LAYERS})
    torch.manual_seed(0)
    model: PreTrainedModel = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    if kept:
        every = dense.config.num_hidden_layers // LAYERS
        weights = dict(dense.state_dict())
        for name in [name for name in weights if name.startswith("transformer.h.")]:
            number, _, rest = name.removeprefix("transformer.h.").partition(".")
            tensor = weights.pop(name)
            if int(number) % every == 0:
                weights[f"transformer.h.{int(number) // every}.{rest}"] = tensor
        model.load_state_dict(weights)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def options_of(data: Path, target: float, steps: int, mode: str = "gradual") -> Options:
    """Return the options of a run; its seed, and so its data order, is not the dense model's."""
    chosen = CHOSEN if mode == "gradual" else {}
    return Options(
        model=str(MODEL),
        task="causal-lm",
        output=str(HERE / ("run" if mode == "gradual" else mode)),
        speedup=(target,),
        train_file=str(data / "wikitext-2" / "train.txt"),
        validation_file=str(data / "wikitext-2" / "valid.txt"),
        batch_size=4,
        input_length=CONTEXT,
        threads=1,
        clock="cpu",
        measure_seconds=30,
        search_samples=64,
        calibration_batch_size=8,
        seed=1,
        mode=mode,
        steps_per_target=steps,
        train_batch_size=RECIPE.batch_size,
        **chosen,
    )


def smaller_models(after: int) -> Iterator[Smaller]:
    """Yield all baselines; `after` is the number of steps after the training of the dense model."""
    before = int(read_json(MODEL / "metrics.json")["training"]["steps"])
    recipe = replace(RECIPE, max_steps=before + after)
    yield Smaller(False, recipe)
    yield Smaller(False, replace(recipe, learning_rate=HIGHER))
    yield Smaller(True, recipe)
    yield Smaller(True, replace(recipe, learning_rate=LEARNING_RATE, max_steps=after))


def run(data: Path, steps: int, methods: Sequence[str]) -> None:
    """Make and judge every model that is missing, then measure all models together.

    Args:
        data: folder with the published datasets.
        steps: steps after those of the dense model.
        methods: which models to make: "gradual", "finetune", and smaller ones with "kept layers".
    """
    files = {"test": data / "wikitext-2" / "test.txt"}
    judge = Judge("causal-lm", MODEL, files, CONTEXT)
    _keep_row("dense", MODEL, judge)
    target = _speedup_of_layers(options_of(data, 2.0, steps))
    options = options_of(data, target, steps)
    table = table_file(HERE, options)
    for mode in [mode for mode in ("gradual", "finetune") if mode in methods]:
        for member in compress(options_of(data, target, steps, mode), table):
            _keep_row(f"{mode} to {member.target}", member.folder, judge)
    features = judge.training(data / "wikitext-2" / "train.txt")
    for smaller in smaller_models(steps) if "kept layers" in methods else ():
        folder, training = HERE / "smaller" / smaller.name, HERE / "training" / smaller.name
        if not (folder / "config.json").exists():
            print(smaller.name, flush=True)
            model = smaller.build()
            finetune(model, judge.task, features, smaller.options, folder=training, progress=tell)
            ziplm.save(model, folder, judge.tokenizer)
        shutil.rmtree(training, ignore_errors=True)
        _keep_row(smaller.name, folder, judge)
    _measure(options)


def _keep_row(name: str, folder: Path, judge: Judge) -> None:
    """Judge a model and write the row of results, unless the row exists."""
    path = HERE / "rows" / f"{name}.json"
    if path.exists():
        return
    model = ziplm.load(folder)
    transformer: Any = model.base_model
    decoder = sum(parameter.numel() for parameter in transformer.h.parameters())
    keep(path, {"name": name, "folder": str(folder), "decoder parameters": decoder, **judge(model)})


def _speedup_of_layers(options: Options) -> float:
    """Measure the speedup of fewer layers, rounded to two digits because it becomes the name of a target."""
    path = HERE / "layers.json"
    if not path.exists():
        models = {"dense": ziplm.load(MODEL), "fewer": with_fewer_layers(kept=True)}
        found = compare_models(models, options.setting, max_seconds=90)
        write_json(path, {"speedup": round(found.speedup("fewer").value, 2)})
    speedup = float(read_json(path)["speedup"])
    print(f"measured: {LAYERS} layers are {speedup:g}x as fast", flush=True)
    return speedup


def _measure(options: Options) -> None:
    """Measure all models in the same rounds, unless that was done for exactly these models."""
    folders = {row["name"]: row["folder"] for row in rows_in(HERE)}
    names = sorted(folders, key=lambda name: name != "dense")
    path = HERE / "speedups.json"
    if path.exists() and set(read_json(path)) == set(names) - {"dense"}:
        return
    models = {name: ziplm.load(folders[name]) for name in names}
    found = compare_models(models, options.setting, max_seconds=180)
    ratios = {name: found.speedup(name) for name in names[1:]}
    write_json(path, {name: [ratio.value, ratio.low, ratio.high] for name, ratio in ratios.items()})


def report() -> None:
    """Print perplexity and speedup of all models."""
    speedups = read_json(HERE / "speedups.json") if (HERE / "speedups.json").exists() else {}
    rows = sorted(rows_in(HERE), key=lambda row: (speedups.get(row["name"], [0])[0], row["name"]))
    lines = []
    for row in rows:
        value, low, high = speedups.get(row["name"], [1.0, 1.0, 1.0])
        shown = f"{value:.2f} [{low:.2f}, {high:.2f}]" if row["name"] in speedups else ""
        decoder = f"{row['decoder parameters'] / 1e6:.2f}M"
        lines.append([row["name"], shown, decoder, f"{row['test']:.1f}"])
    print_table(
        "GPT2 on WikiText-2", ["", "measured speedup", "decoder parameters", "test perplexity"], lines
    )
