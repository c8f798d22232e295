"""Search and refit refer to the dense model, also where another model is pruned."""

from pathlib import Path

import pytest
import torch
import ziplm
from ziplm.options.options import Options
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.target_steps import loss_on
from ziplm.runs.folder import Run
from ziplm.stages.evaluate import divergences
from ziplm.stages.stitch import CandidateLoss, Stitcher
from ziplm.tasks.heads import mean_divergence
from ziplm_shared import shared_options, write_shared_files


@torch.no_grad()
def test_the_loss_of_candidates_is_their_divergence_from_the_dense_model(tmp_path: Path) -> None:
    files = write_shared_files(tmp_path)
    start = load_start(Options(**shared_options(files, "bert", tmp_path / "run")), Run(tmp_path / "run"))
    current, samples = ziplm.load(start.options.model), start.samples.search
    current.classifier.weight.mul_(1.5)
    current.classifier.bias.add_(torch.tensor([0.5, -0.5])[: len(current.classifier.bias)])
    stitcher = Stitcher(current, {})
    sizes = [branch.size for branch in stitcher.branches]  # nothing is pruned
    from_dense = mean_divergence(divergences(current, start.dense_outputs, start.task, samples))
    run = Run(tmp_path / "run")
    assert loss_on(start, samples, stitcher, run)(sizes) == pytest.approx(from_dense, rel=1e-3)
    assert CandidateLoss(stitcher, start.task, samples)(sizes) < 0.01 * from_dense  # control: from itself
