"""Traces: counters, equality, and what they are written as."""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minidist import Event, Simulated, Trace, naive_allreduce, ring_allreduce, run
from minidist.trace import dtype_name


def event(**changes):
    fields = dict(rank=0, kind="send", peer=1, step=0, nbytes=8, dtype="float32", shape=(2,))
    return Event(**{**fields, "offset": 0, "start": 0.0, "end": 1.0, **changes})


def test_dtype_names():
    assert dtype_name(torch.float32) == "float32" and dtype_name(torch.bool) == "bool"


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 2},
        {"kind": "recv"},
        {"peer": 2},
        {"step": 1},
        {"nbytes": 4},
        {"dtype": "int32"},
        {"shape": (1, 2)},
        {"offset": 1},
    ],
)
def test_equality_is_about_what_happened_and_not_when(change):
    assert event(**change) != event()
    assert Trace([[event(**change)]]) != Trace([[event()]])
    assert event(start=5.0, end=6.0) == event()
    assert Trace([[event(start=5.0, end=6.0)]]) == Trace([[event()]])


def test_order_counts_within_a_rank_only():
    a, b = event(step=0), event(step=1)
    assert Trace([[a, b]]) != Trace([[b, a]])
    assert Trace([[a], []]) != Trace([[a]])
    assert Trace([[a]]) != [[a]]


def test_counters():
    trace = run(naive_allreduce, 3, torch.ones(5), transport="simulated").trace
    assert trace.world_size == 3
    assert trace.bytes_sent == [40, 20, 20]
    assert trace.bytes_received == [40, 20, 20]
    assert trace.messages_sent == [2, 1, 1]
    assert len(trace) == 8
    assert repr(trace) == "<Trace: 3 ranks, 4 messages, 80 bytes>"


def test_iteration_is_by_end_then_rank():
    events = [event(rank=r, end=end) for r, end in [(1, 2.0), (0, 2.0), (2, 1.0)]]
    assert [e.rank for e in Trace([[e] for e in events])] == [2, 0, 1]


def test_duration():
    assert Trace([[], []]).duration == 0.0
    assert Trace([[event(start=1.0, end=4.0)], [event(start=2.0, end=3.5)]]).duration == 3.0


def test_unreceived():
    def fn(mesh):
        if mesh.rank == 0:
            mesh.send(1, torch.ones(1))
            mesh.send(1, torch.ones(1))
            mesh.send(2, torch.ones(1))
        if mesh.rank == 1:
            mesh.recv(0)

    assert run(fn, 3, transport="simulated").trace.unreceived() == {(0, 1): 1, (0, 2): 1}


events = st.builds(
    Event,
    rank=st.integers(0, 2),
    kind=st.sampled_from(["send", "recv"]),
    peer=st.integers(0, 2),
    step=st.integers(0, 100),
    nbytes=st.integers(0, 2**40),
    dtype=st.sampled_from(["float32", "int64"]),
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    offset=st.none() | st.integers(0, 2**40),
    start=st.floats(0, 1e6),
    end=st.floats(0, 1e6),
)


@given(st.lists(events, max_size=8))
def test_jsonl_round_trip(some):
    trace = Trace([[e for e in some if e.rank == rank] for rank in range(3)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.jsonl")
        trace.to_jsonl(path)
        again = Trace.from_jsonl(path)
    assert again == trace
    exact = [[dataclasses.astuple(e) for e in rank] for rank in trace.by_rank]  # times as well
    assert [[dataclasses.astuple(e) for e in rank] for rank in again.by_rank] == exact


def test_jsonl_is_one_object_per_line(tmp_path):
    trace = run(ring_allreduce, 2, torch.ones(3), transport="simulated").trace
    trace.to_jsonl(tmp_path / "trace.jsonl")
    head, *lines = map(json.loads, (tmp_path / "trace.jsonl").read_text().splitlines())
    assert head == {"world_size": 2}
    assert len(lines) == len(trace)
    assert lines[0]["shape"] == [2] and lines[0]["dtype"] == "float32"


@pytest.mark.parametrize("transport", ["queue", Simulated(alpha=1e-6, beta=1e-9)])
@pytest.mark.parametrize("collective", [ring_allreduce, naive_allreduce])
def test_chrome_export(tmp_path, transport, collective):
    trace = run(collective, 4, torch.ones(1000), transport=transport).trace
    trace.to_chrome(tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [e for e in written if e["ph"] == "X"]
    assert len(slices) == len(trace)
    names = {e["pid"]: e["args"]["name"] for e in written if e["name"] == "process_name"}
    assert names == {rank: f"rank {rank}" for rank in range(4)}
    assert sum(e["args"]["bytes"] for e in slices if e["cat"] == "send") == sum(trace.bytes_sent)
    for s in slices:
        assert s["dur"] >= 0 and s["ts"] >= 0 and s["name"].split()[0] == s["cat"]
    # The slices of one track must not overlap: viewers drop those that do.
    for track in {(s["pid"], s["tid"]) for s in slices}:
        on_it = sorted((s["ts"], s["dur"]) for s in slices if (s["pid"], s["tid"]) == track)
        for (ts, dur), (following, _) in itertools.pairwise(on_it):
            assert ts + dur <= following + 1e-6
