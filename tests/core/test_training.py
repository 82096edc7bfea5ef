"""`python -m minidist train`: it learns, it says so, and the backends agree."""

from __future__ import annotations

import json

import pytest
import torch

from minidist import training
from minidist.cli import main


@pytest.mark.parametrize("world_size", [1, 3])
def test_all_four_corners_learn_the_same(world_size):
    first, *others = (
        training.train(backend, world_size, epochs=2, ddp=ddp)
        for backend in ("minidist", "gloo")
        for ddp in ("ours", "torch")
    )
    for other in others:
        assert [(e.loss, e.accuracy) for e in other] == [(e.loss, e.accuracy) for e in first]
    assert first[1].loss < first[0].loss / 2
    assert first[1].accuracy >= training.LEARNED


def test_the_world_size_hardly_matters():
    alone, four = (training.train("minidist", n, epochs=2)[-1] for n in (1, 4))
    assert abs(alone.accuracy - four.accuracy) < 0.05


def test_command(tmp_path, capsys):
    path = tmp_path / "epochs.json"
    assert main(["train", "--ddp", "ours", "--epochs", "2", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Our DDP on minidist, 2 ranks")
    assert "[rank 0] epoch 2 of 2  [####################]  loss 0." in printed
    epochs = json.loads(path.read_text())
    assert [sorted(epoch) for epoch in epochs] == [["accuracy", "loss", "seconds"]] * 2
    assert f"accuracy  {epochs[-1]['accuracy']:.1%}" in printed


def test_the_exit_code_tells_that_nothing_was_learned(monkeypatch, capsys):
    untrained = [training.Epoch(loss=2.3, accuracy=0.12, seconds=1.0)]
    monkeypatch.setattr("minidist.cli.train", lambda *_, **__: untrained)
    assert main(["train"]) == 1
    assert "NOT LEARNED" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_without_a_gpu_says_what_it_needs(capsys):
    assert main(["train", "--backend", "nccl"]) == 2
    assert "nccl needs a GPU per rank, and there are 0 for 2 ranks" in capsys.readouterr().err
