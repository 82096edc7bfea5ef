"""The player's Python half: what it embeds, how large it is, and its colours."""

from __future__ import annotations

import json

import broken
import pytest

import minidist
from minidist.provenance import first_divergence, record
from minidist.widgets import Player, player, show_player, watch


@pytest.mark.parametrize(
    "fn, op",
    [
        (minidist.ring_allreduce, "allreduce"),
        (minidist.naive_allreduce, "allreduce"),
        (minidist.broadcast, "broadcast"),
        (minidist.allgather, "allgather"),
        (minidist.reduce_scatter, "reduce_scatter"),
    ],
)
def test_all_world_sizes_fit_in_the_page(fn, op):
    view = player(fn, op=op)
    assert [r["world_size"] for r in view.recordings] == list(range(2, 9))
    assert view.world_size == 4 and view.step == 0
    state = {k: v for k, v in view.get_state().items() if not k.startswith("_model")}
    assert len(json.dumps(state)) < 200_000


def test_arguments_reach_the_function():
    view = player(minidist.broadcast, 1, op="broadcast", world_sizes=[3, 5], start=5, numel=2)
    assert [r["src"] for r in view.recordings] == [1, 1]
    assert view.recordings[1]["frames"][1]["messages"][0]["src"] == 1
    assert len(view.recordings[1]["inputs"][0]) == 2
    sized = player(minidist.ring_allreduce, world_sizes=[2, 3], start=2, numel=lambda n: 2 * n)
    assert [len(r["inputs"][0]) for r in sized.recordings] == [4, 6]
    with pytest.raises(ValueError, match="start is 4"):
        player(minidist.ring_allreduce, world_sizes=[2, 3])


def test_your_own_run_that_fails():
    view = watch(broken.all_receive_first)
    assert view.recordings[0]["finished"] is False
    assert "They wait in a circle" in view.recordings[0]["error"]
    assert view.name == "all receive first"


def test_up_to_the_first_divergence():
    recording = record(broken.off_by_one, 4, 4)
    divergence = first_divergence(recording, record(minidist.ring_allreduce, 4, 4))
    view = Player.of(recording, note=divergence.text, until=divergence.frame)
    assert len(view.recordings[0]["frames"]) == divergence.frame + 1 < len(recording.frames)
    assert view.recordings[0]["finished"] is False and view.note == divergence.text
    whole = Player.of(recording, until=recording.steps)
    assert whole.recordings[0]["finished"] is True


def test_a_player_is_shown_with_its_strip(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    show_player(minidist.ring_allreduce, world_sizes=[2, 3], start=3)
    assert [type(s).__name__ for s in shown] == ["Player", "Figure"]
    assert shown[0].world_size == 3
