"""Loading checkpoints where ziplm is not installed, for tests of all architectures."""

import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from ziplm import save
from ziplm_models import outputs_of, tokens_for

# Runs in a process in which ziplm cannot be imported, and prints the outputs of all checkpoints.
WITHOUT_ZIPLM = """
import copy, json, sys
sys.modules["ziplm"] = None
import torch, transformers
made = {}
for name, (folder, auto, batch) in json.load(sys.stdin).items():
    model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules"), type(model)
    inputs = {key: torch.tensor(value) for key, value in batch.items()}
    made[name] = copy.deepcopy(model)(**inputs)[0].double().flatten().tolist()
json.dump(made, sys.stdout)
"""


def assert_load_without_ziplm(
    models: Mapping[str, PreTrainedModel], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Save shrunk models, load them in a process without ziplm, and compare their outputs.

    Args:
        models: the models by name of their dense class, one of each.
        folder: where to save them.
        monkeypatch: changes the environment of the process.
    """
    given, expected = {}, {}
    for name, model in models.items():
        save(model, folder / name)
        auto = sys.modules[type(model).__module__].AUTO_CLASSES[type(model)]
        batch = tokens_for(name)
        given[name] = (str(folder / name), auto, {key: value.tolist() for key, value in batch.items()})
        expected[name] = outputs_of(copy.deepcopy(model), batch)[0].double().flatten()
    monkeypatch.setenv("HF_MODULES_CACHE", str(folder / "modules"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_ZIPLM],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    for name, values in json.loads(result.stdout).items():
        got = torch.tensor(values, dtype=torch.float64)
        torch.testing.assert_close(got, expected[name], rtol=1e-5, atol=1e-5)
