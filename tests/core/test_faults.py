"""What goes wrong on purpose ends soon, in an error that says who, with whom, where and why."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from minidist import (
    CollectiveMismatch,
    Deadlock,
    MessageCorrupted,
    MessageLost,
    MessageMismatch,
    PeerLost,
    RecvTimeout,
    broadcast,
    naive_allreduce,
    ring_allreduce,
    run,
)
from minidist.collectives import reduce
from minidist.diagnosis import Report, likely_cause
from minidist.faults import Corrupt, Drop, Duplicate, Kill, Slow, Stall
from minidist.mesh import Wait
from minidist.transports.process_group import mesh_from_process_group

DEADLINE_S = 0.8
on_wires = pytest.mark.parametrize("transport", ["queue", "tcp", "shared_memory"])


def fails(error, fn, world_size, *args, **options):
    """The text of the error in which the run ends, in time and leaving nothing."""
    run(lambda mesh: None, 1)  # the server that forks the ranks is there to stay
    before = left()
    began = time.monotonic()
    run(lambda mesh: None, world_size)
    starting = time.monotonic() - began  # of the ranks, before their first receive begins
    began = time.monotonic()
    with pytest.raises(error) as raised:
        run(fn, world_size, *args, recv_timeout_ms=1000 * DEADLINE_S, **options)
    assert time.monotonic() - began < starting + DEADLINE_S + 1.0
    assert left() == before
    return str(raised.value)


def left():
    """What a run could leave behind: open files, processes, names in shared memory."""
    names = {p.name for p in Path("/dev/shm").iterdir() if p.name.startswith(("minidist", "psm_"))}
    return len(os.listdir("/proc/self/fd")), len(multiprocessing.active_children()), names


@on_wires
@pytest.mark.parametrize("step", range(4))
def test_a_rank_that_dies_at_any_step(transport, step):
    x = torch.arange(300_000.0)
    text = fails(PeerLost, ring_allreduce, 3, x, transport=transport, faults=[Kill(1, step)])
    assert "rank 1: its process was killed by SIGKILL" in text
    if "Likely cause" in text:  # unless the others had not come so far
        assert "Likely cause: rank 1 is gone, and rank 2 needs its message" in text


@on_wires
def test_a_rank_that_never_enters(transport):
    text = fails(RecvTimeout, work, 4, transport=transport, faults=[Stall(2)])
    assert "rank 2: in its own code, work at test_faults.py" in text
    assert "rank 3: recv from rank 2, step 0 of ring_allreduce" in text
    assert "Likely cause: rank 2 has not come to the call that rank 3 waits for" in text


def by_value():
    """A function that travels by value: ranks need not import this module to have it."""

    def work(mesh):
        return ring_allreduce(mesh, torch.arange(9.0))

    return work


work = by_value()


@on_wires
def test_a_rank_that_stops_in_the_middle(transport):
    text = fails(RecvTimeout, work, 3, transport=transport, faults=[Stall(0, step=2)])
    assert "Likely cause: rank 0 has not come to the call that rank 1 waits for" in text
    assert "after 2 calls" in text
    assert "rank 0: step 0 send to 1, 12 bytes; step 0 recv from 2, 12 bytes; step 1" in text


@on_wires
def test_a_slow_link(transport):
    text = fails(RecvTimeout, work, 3, transport=transport, faults=[Slow(1, 2, 5.0)])
    assert "or the wire from 1 to 2 is slow" in text
    slow = [Slow(1, 2, 0.1)]  # slow, but not too slow
    result = run(work, 3, transport=transport, faults=slow, recv_timeout_ms=5000)
    assert result.results[0].tolist() == [3.0 * v for v in range(9)]
    took = Counter()
    for event in result.trace:
        if event.kind == "recv":
            took[event.peer, event.rank] += event.end - event.start
    assert took[1, 2] >= 0.2  # each of the four messages, less what others waited for anyway


@on_wires
def test_a_dropped_message(transport):
    text = fails(MessageLost, work, 3, transport=transport, faults=[Drop(0, 1, 2)])
    assert "rank 1 expected message 2 from rank 0 at step 2, but message 3 came: message 2 " in text
    text = fails(RecvTimeout, work, 3, transport=transport, faults=[Drop(0, 1, 3)])  # its last one
    assert "Likely cause: rank 0 has sent message 3 to rank 1, and it has not arrived" in text


@on_wires
def test_a_message_that_comes_twice(transport):
    text = fails(MessageLost, work, 3, transport=transport, faults=[Duplicate(0, 1, 1)])
    assert "expected message 2 from rank 0 at step 2, but message 1 came: it must have been" in text


@on_wires
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64])
def test_a_corrupted_value(transport, dtype):
    x = torch.ones(8, dtype=dtype)
    options = {"transport": transport, "faults": [Corrupt(2, 3, 0)]}
    text = fails(MessageCorrupted, ring_allreduce, 4, x, checksums=True, **options)
    assert "message 0 from rank 2 reached rank 3 at step 0 with other bytes than were" in text
    wrong = run(ring_allreduce, 4, x, **options).results  # nobody looks: everybody has it wrong
    right = run(ring_allreduce, 4, x, transport=transport, checksums=True).results
    assert not torch.equal(wrong[3], right[3]) or dtype == torch.bool


@on_wires
def test_other_shapes_and_dtypes(transport):
    for odd in (torch.ones(9), torch.ones(6, dtype=torch.int32)):
        inputs = [torch.ones(6), odd, torch.ones(6)]
        text = fails(MessageMismatch, ring_allreduce, 3, inputs=inputs, transport=transport)
        assert "At that moment:" in text


@on_wires
def test_other_orders_of_collectives(transport):
    def orders(mesh):
        # The same message goes from 0 to 1 either way: without labels nobody would notice.
        calls = [lambda x: broadcast(mesh, x, 0), lambda x: reduce(mesh, x, 1)]
        for call in calls if mesh.rank == 1 else reversed(calls):
            call(torch.ones(4))

    text = fails(CollectiveMismatch, orders, 2, transport=transport)
    assert "rank 1 is in broadcast at step 0, but rank 0 sent it a message of reduce" in text
    assert "different orders" in text

    def waits(mesh):
        x = torch.ones(4)
        if mesh.rank == 0:
            naive_allreduce(mesh, x)
        else:
            broadcast(mesh, x, 0)

    text = fails(RecvTimeout, waits, 2, transport=transport)
    assert "naive_allreduce" in text and "they call their collectives in different orders" in text


@on_wires
def test_one_call_too_many(transport):
    def fn(mesh):
        for _ in range(2 if mesh.rank == 0 else 1):
            ring_allreduce(mesh, torch.ones(3))

    text = fails(RecvTimeout, fn, 3, transport=transport)
    assert "rank 2 has returned after 4 messages to rank 0, which waits for one more" in text


def test_faults_on_simulated_ranks():
    x = torch.arange(6.0)
    for fault, error in ((Drop(0, 1, 2), MessageLost), (Duplicate(0, 1, 0), MessageLost)):
        with pytest.raises(error, match=r"rank 1 expected message \d from rank 0"):
            run(ring_allreduce, 3, x, transport="simulated", faults=[fault])
    with pytest.raises(Deadlock):
        run(ring_allreduce, 3, x, transport="simulated", faults=[Drop(0, 1, 3)])
    with pytest.raises(MessageCorrupted):
        options = {"faults": [Corrupt(0, 1, 0)], "checksums": True}
        run(ring_allreduce, 3, x, transport="simulated", **options)
    with pytest.raises(ValueError, match="only Drop, Duplicate and Corrupt"):
        run(ring_allreduce, 3, x, transport="simulated", faults=[Kill(0, 0)])


def test_a_fault_of_no_rank():
    with pytest.raises(ValueError, match=r"Kill\(rank=3, step=0\): ranks go from 0 to 2"):
        run(ring_allreduce, 3, torch.ones(1), faults=[Kill(3, 0)])


def test_faults_on_a_process_group():
    def fn(_):
        from minidist.faults import inject

        mesh = mesh_from_process_group(recv_timeout_ms=500)
        inject(mesh, [Drop(0, 1, 1)])
        return ring_allreduce(mesh, torch.ones(6))

    with pytest.raises((RecvTimeout, PeerLost), match="rank"):
        run(fn, 2, process_group="gloo")


def test_each_likely_cause():
    def report(wait=None, sent=(0, 0, 0), received=(0, 0, 0), place="in its own code"):
        return Report(wait, place, 3, sent, received, ())

    def cause(reports, finished=(), gone=None, silent=(), failed=0):
        return likely_cause(dict(enumerate(reports)), finished, gone or {}, silent, failed)

    on_1, on_2, on_0 = (Wait("recv from", peer, 3) for peer in (1, 2, 0))
    here = report()
    assert cause([here, here, here]) == ""
    assert "rank 1 has not come to the call that rank 0 waits for" in cause(
        [report(on_1), here, here]
    )
    assert "rank 2 has not come to the call that rank 1" in cause(
        [report(on_1), report(on_2), here]
    )
    assert "rank 1 has sent message 0 to rank 0" in cause(
        [report(on_1), report(sent=(1, 0, 0)), here]
    )
    assert "rank 1 has returned after 0 messages" in cause([report(on_1), here, here], finished=[1])
    assert "rank 1 is gone" in likely_cause({0: report(on_1)}, (), {1: "killed"}, (), 0)
    assert "rank 1 does not answer" in likely_cause({0: report(on_1)}, (), {}, [1], 0)
    circle = [report(on_1), report(on_2), report(on_0)]
    assert "each of the ranks 0, 1, 2 receives before" in cause(circle)
    two = [
        report(Wait("recv from", 1, 3, "broadcast")),
        report(Wait("recv from", 2, 3, "reduce")),
        here,
    ]
    assert "rank 0 is in broadcast and rank 1 is in reduce" in cause(two)


@pytest.mark.parametrize("transport", ["queue", "tcp", "shared_memory", "simulated"])
def test_the_log_of_messages(transport, tmp_path):
    result = run(ring_allreduce, 3, torch.ones(300), transport=transport, log=tmp_path / "log")
    for rank in range(3):
        with open(tmp_path / "log" / f"rank{rank}.jsonl", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        assert len(lines) == len(result.trace.by_rank[rank]) == 8
        assert [(e["kind"], e["peer"], e["step"], e["bytes"]) for e in lines] == [
            (e.kind, e.peer, e.step, e.nbytes) for e in result.trace.by_rank[rank]
        ]
        last = lines[-1]
        assert last["bytes_sent"] == result.trace.bytes_sent[rank] == 4 * 400
        assert last["bytes_received"] == result.trace.bytes_received[rank]
        assert last["messages_sent"] == last["messages_received"] == 4


def test_the_log_of_a_rank_that_was_killed(tmp_path):
    with pytest.raises(PeerLost):
        run(work, 3, log=tmp_path, faults=[Kill(1, 2)])
    lines = (tmp_path / "rank1.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 0, 1, 1]
