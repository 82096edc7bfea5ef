"""The three verbs and their errors, on every transport."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from minidist import (
    Deadlock,
    Mesh,
    MessageMismatch,
    RankFailed,
    RecvTimeout,
    Simulated,
    run,
)
from minidist.diagnosis import describe_waits, wait_circle
from minidist.mesh import Wait

TRANSPORTS = pytest.mark.parametrize(
    "transport",
    ["queue", "tcp", "shared_memory", "simulated", Simulated(rendezvous=True)],
    ids=["queue", "tcp", "shm", "sim", "rdv"],
)


def test_the_fields_that_everybody_relies_on():
    names = [field.name for field in dataclasses.fields(Mesh)]
    assert names[:2] == ["rank", "world_size"]


@TRANSPORTS
def test_send_is_a_copy(transport):
    def fn(mesh):
        if mesh.rank == 0:
            x = torch.zeros(1000)
            for value in range(5):
                x.fill_(value)
                mesh.send(1, x)
            x.fill_(-1)
            return None
        return [mesh.recv(0).unique().tolist() for _ in range(5)]

    assert run(fn, 2, transport=transport).results[1] == [[0.0], [1.0], [2.0], [3.0], [4.0]]


@TRANSPORTS
def test_what_arrives_is_ones_own(transport):
    def fn(mesh):
        x = torch.ones(3)
        if mesh.rank == 0:
            mesh.send(1, x)
            mesh.recv(1)
            return x
        y = mesh.recv(0)
        y += 1  # must be writable
        mesh.send(0, y)
        return y

    first, second = run(fn, 2, transport=transport).results
    assert first.tolist() == [1, 1, 1] and second.tolist() == [2, 2, 2]


@TRANSPORTS
def test_each_pair_of_ranks_is_first_in_first_out(transport):
    def fn(mesh):
        if mesh.rank == 0:
            first, second = [], []
            for _ in range(20):
                second.append(mesh.recv(2).item())
                first.append(mesh.recv(1).item())
            return first, second
        for i in range(20):
            mesh.send(0, torch.tensor(100 * mesh.rank + i))
        return None

    first, second = run(fn, 3, transport=transport).results[0]
    assert first == list(range(100, 120)) and second == list(range(200, 220))


@TRANSPORTS
def test_any_tensor_arrives_as_it_is(transport):
    tensors = {
        "transposed": lambda: torch.arange(12.0).reshape(3, 4).t(),
        "strided": lambda: torch.arange(12.0)[1::3],
        "expanded": lambda: torch.ones(1).expand(4, 2),
        "0-dim": lambda: torch.tensor(3.5),
        "empty": lambda: torch.empty(0, 3, dtype=torch.int8),
        "conjugated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "negated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "requires grad": lambda: torch.ones(3, requires_grad=True),
        "not a number": lambda: torch.tensor([float("nan"), -0.0], dtype=torch.bfloat16),
        "cannot be added": lambda: torch.tensor([1, 2**63], dtype=torch.uint64),
        "8 bits": lambda: torch.ones(2, dtype=torch.float8_e4m3fn),
    }

    def raw(tensor):
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return tensor.dtype, tuple(tensor.shape), plain.reshape(-1).view(torch.uint8).tolist()

    def fn(mesh):
        if mesh.rank == 0:
            return [mesh.send(1, make()) for make in tensors.values()]
        got = [mesh.recv(0) for _ in tensors]
        plain = [
            x.is_contiguous() and not (x.requires_grad or x.is_conj() or x.is_neg()) for x in got
        ]
        return [raw(x) for x in got], plain

    made = [make() for make in tensors.values()]  # they travel as arguments and as results, too
    for result in run(lambda mesh: made, 2, transport=transport).results:
        assert list(map(raw, result)) == list(map(raw, made))
    got, plain = run(fn, 2, transport=transport).results[1]
    assert dict(zip(tensors, got, strict=True)) == {k: raw(make()) for k, make in tensors.items()}
    assert all(plain)


@TRANSPORTS
def test_sendrecv_goes_around_a_ring_all_at_once(transport):
    def fn(mesh):
        right, left = (mesh.rank + 1) % 4, (mesh.rank - 1) % 4
        x = torch.tensor(mesh.rank)
        for _ in range(3):
            x = mesh.sendrecv(right, x, left)
        return x.item()

    assert run(fn, 4, transport=transport).results == [1, 2, 3, 0]


@pytest.mark.parametrize("transport", ["queue", "simulated"])
def test_a_ring_of_plain_sends_works_where_sends_are_buffered(transport):
    def fn(mesh):
        mesh.send((mesh.rank + 1) % 3, torch.full((50_000,), mesh.rank))  # more than a pipe holds
        return mesh.recv((mesh.rank - 1) % 3)[0].item()

    assert run(fn, 3, transport=transport).results == [2, 0, 1]


@TRANSPORTS
def test_peers_that_are_none(transport):
    def fn(mesh):
        texts = []
        x = torch.ones(1)
        for call in (
            lambda: mesh.send(mesh.rank, x),
            lambda: mesh.recv(mesh.rank),
            lambda: mesh.sendrecv(mesh.rank, x, 1 - mesh.rank),
            lambda: mesh.sendrecv(1 - mesh.rank, x, mesh.rank),
            lambda: mesh.send(2, x),
            lambda: mesh.recv(-1),
        ):
            try:
                call()
            except ValueError as error:
                texts.append(str(error))
        return texts, len(mesh.events), mesh.step

    texts, events, step = run(fn, 2, transport=transport).results[1]
    assert (events, step) == (0, 0)
    itself = "rank 1 would {} itself at step 0; keep local data local, only other ranks are peers"
    assert texts[:4] == [itself.format(v) for v in ["send to", "recv from", "send to", "recv from"]]
    assert texts[4].startswith("rank 1 would send to rank 2 at step 0, but ranks go from 0 to 1")
    assert texts[5].startswith("rank 1 would recv from rank -1 at step 0")


@TRANSPORTS
@pytest.mark.parametrize(
    ("like", "says"),
    [
        (torch.ones(3), r"float32 of shape \(3,\)"),
        (torch.ones(2, 1), r"float32 of shape \(2, 1\)"),
        (torch.ones(2, dtype=torch.float64), r"float64 of shape \(2,\)"),
    ],
)
def test_a_message_of_another_kind(transport, like, says):
    def fn(mesh):
        if mesh.rank == 0:
            mesh.send(1, torch.ones(2))
            mesh.send(1, torch.ones(2))
        else:
            mesh.recv(0)
            mesh.recv(0, like=like)

    expected = (
        rf"rank 1 expected {says} from rank 0 at step 1, but rank 0 sent float32 of shape \(2,"
    )
    with pytest.raises(MessageMismatch, match=expected):
        run(fn, 2, transport=transport)


@TRANSPORTS
def test_sendrecv_of_two_kinds_needs_like(transport):
    def fn(mesh, with_like):
        mine, other = torch.ones(mesh.rank + 1), torch.ones(2 - mesh.rank)
        like = other if with_like else None
        return mesh.sendrecv(1 - mesh.rank, mine, 1 - mesh.rank, like=like)

    assert [x.numel() for x in run(fn, 2, True, transport=transport).results] == [2, 1]
    with pytest.raises(MessageMismatch):
        run(fn, 2, False, transport=transport)


def test_timeouts_name_rank_peer_and_step():
    def fn(mesh):
        if mesh.rank == 0:
            mesh.send(1, torch.ones(1))
        if mesh.rank == 1:
            mesh.recv(0)
            mesh.sendrecv(2, torch.ones(1), 0)

    with pytest.raises(
        RecvTimeout, match=r"rank 1 waited 0.1 s for a message from rank 0 at step 1"
    ):
        run(fn, 3, recv_timeout_ms=100)


def test_verbs_are_numbered_and_recorded():
    def fn(mesh):
        if mesh.rank == 0:
            x = torch.arange(10)
            mesh.send(1, x[4:6])
            mesh.sendrecv(1, x[2:5], 1)
        else:
            mesh.recv(0)
            mesh.sendrecv(0, torch.zeros(3, dtype=torch.int64), 0)
        assert mesh.waits_for is None
        return mesh.step

    result = run(fn, 2, transport="simulated")
    assert result.results == [2, 2]
    brief = [(e.kind, e.peer, e.step, e.nbytes, e.offset) for e in result.trace.by_rank[0]]
    assert brief == [("send", 1, 0, 16, 4), ("send", 1, 1, 24, 2), ("recv", 1, 1, 24, None)]
    assert result.trace.by_rank[0][0].dtype == "int64"
    assert result.trace.by_rank[0][0].shape == (2,)


# The wait-for graph


def test_wait_circles():
    assert wait_circle({0: 1, 1: 2, 2: 0}) == [0, 1, 2]
    assert wait_circle({3: 2, 2: 3, 0: 3}) == [2, 3]
    assert wait_circle({0: 1, 1: 2}) == []
    assert wait_circle({}) == []


def test_waits_in_words():
    waits = {0: Wait("recv from", 2, 4), 2: Wait("send to", 0, 1), 3: Wait("recv from", 1, 0)}
    assert describe_waits(waits, finished=[1]).splitlines() == [
        "  rank 0: recv from rank 2, step 4",
        "  rank 2: send to rank 0, step 1",
        "  rank 3: recv from rank 1, step 0 (which has already finished)",
        "They wait in a circle: 0 -> 2 -> 0",
    ]


def test_a_ring_of_plain_sends_deadlocks_where_sends_wait():
    def fn(mesh):
        mesh.send((mesh.rank + 1) % 3, torch.ones(1))
        mesh.recv((mesh.rank - 1) % 3)

    with pytest.raises(Deadlock) as raised:
        run(fn, 3, transport=Simulated(rendezvous=True))
    assert str(raised.value).splitlines() == [
        "no rank can go on, each waits for another:",
        "  rank 0: send to rank 1, step 0",
        "  rank 1: send to rank 2, step 0",
        "  rank 2: send to rank 0, step 0",
        "They wait in a circle: 0 -> 1 -> 2 -> 0",
        "For each wait, find the call on the other rank that should match it.",
    ]


def test_a_deadlock_names_ranks_that_have_finished():
    def fn(mesh):
        if mesh.rank > 0:
            mesh.recv((mesh.rank + 1) % 4)

    with pytest.raises(Deadlock) as raised:
        run(fn, 4, transport="simulated")
    assert str(raised.value).splitlines()[1:-1] == [
        "  rank 1: recv from rank 2, step 0",
        "  rank 2: recv from rank 3, step 0",
        "  rank 3: recv from rank 0, step 0 (which has already finished)",
    ]


def test_a_failing_rank_ends_the_others_wherever_they_wait():
    cleaned_up = []

    def fn(mesh):
        try:
            if mesh.rank == 2:
                raise KeyError("on purpose")
            mesh.recv((mesh.rank + 1) % 3)
        finally:
            cleaned_up.append(mesh.rank)

    with pytest.raises(RankFailed, match="rank 2 raised KeyError: 'on purpose'"):
        run(fn, 3, transport="simulated")
    assert sorted(cleaned_up) == [0, 1, 2]
