"""Inputs of bench/runs.py besides the published datasets: dense models, sentences and an excerpt of text."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ziplm
from models import BUILD, DIVIDED, RECIPES, language_model, make, pretrained, write_lines

SENTENCES, CORPUS, LINES = 2000, 20_000, 50
WORDS = range(8, 41)  # allowed lengths of a sentence
SPACED = {
    " @-@ ": "-",
    " @,@ ": ",",
    " @.@ ": ".",
    " , ": ", ",
    " 's ": "'s ",
    " ; ": "; ",
    "( ": "(",
    " )": ")",
}
AS_IT_COMES, RANDOM = "minilm", "gpt2-random"


def dense_model(name: str, data: Path) -> Path:
    """Return the folder of a dense model; make the model and its held-out data if they are missing."""
    folder = BUILD / "models" / name
    if name == AS_IT_COMES:
        return pretrained()
    if name == RANDOM:
        if not (folder / "config.json").exists():
            # The vocabulary is as large as GPT2's, so that the head takes as long as there.
            shape = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
            model, tokenizer = language_model(data / "wikitext-2", **shape)
            ziplm.save(model, folder, tokenizer)
        return folder
    make(name, data)
    recipe = RECIPES[name]
    divided = BUILD / "data" / recipe.task
    if recipe.task in DIVIDED and not (divided / next(iter(recipe.evaluation.values()))).exists():
        DIVIDED[recipe.task](data / recipe.data, divided)
    return folder


def sentences(data: Path, count: int = SENTENCES) -> Path:
    """Return a file of sentences drawn from all of WikiText-2, one on each line."""
    path = BUILD / "data" / f"wikitext-{count}-sentences.txt"
    if not path.exists():
        lines = (data / "wikitext-2" / "train.txt").read_text(encoding="utf-8").splitlines()
        found = [
            plain(sentence)
            for line in lines
            if not line.strip().startswith("=")  # skip headings
            for sentence in line.strip().removesuffix(".").split(" . ")
            if len(sentence.split()) in WORDS and "<unk>" not in sentence
        ]
        chosen = sorted(random.Random(0).sample(range(len(found)), count))
        write_lines(path, [found[index] for index in chosen])
    return path


def excerpt(data: Path, count: int = LINES) -> Path:
    """Return the first lines of WikiText-2's validation text: few, for runs whose metric does not matter."""
    path = BUILD / "data" / f"wikitext-{count}-lines.txt"
    if not path.exists():
        lines = (data / "wikitext-2" / "valid.txt").read_text(encoding="utf-8").splitlines()
        write_lines(path, lines[:count])
    return path


INPUTS: dict[str, Callable[[Path], Path]] = {
    "sentences": sentences,
    "corpus": partial(sentences, count=CORPUS),  # to train on
    "excerpt": excerpt,
}


def plain(sentence: str) -> str:
    """Undo the spacing of WikiText-2 around punctuation, approximately."""
    for spaced, usual in SPACED.items():
        sentence = sentence.replace(spaced, usual)
    return sentence.strip() + "."
