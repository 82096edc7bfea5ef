"""What is special about real processes with queues between them."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minidist import run
from minidist.transports.queue import from_bytes, to_bytes

DTYPES = """
    float16 bfloat16 float32 float64 float8_e5m2 complex64 complex128 bool
    uint8 int8 int16 int32 int64 uint16 uint32 uint64
"""


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES.split()])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (3,), (2, 3, 4)])
def test_bytes_and_back(dtype, shape):
    x = (torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) - 1).to(dtype)
    data = to_bytes(x)
    assert len(data) == x.numel() * x.element_size()
    y = from_bytes(data, dtype, shape)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert torch.equal(y.reshape(-1).view(torch.uint8), x.reshape(-1).view(torch.uint8))
    y.fill_(1)  # writable, and nobody else's
    assert data == to_bytes(x)


@given(st.lists(st.integers(0, 4), max_size=4), st.randoms())
def test_bytes_are_in_row_major_order(shape, random):
    dims = list(range(len(shape)))
    random.shuffle(dims)
    x = torch.arange(torch.Size(shape).numel()).reshape(shape).permute(dims)
    assert to_bytes(x) == x.numpy().tobytes()


def test_a_message_of_100_mb():
    def fn(mesh):
        if mesh.rank == 0:
            mesh.send(1, torch.arange(25_000_000, dtype=torch.int32))
            return None
        x = mesh.recv(0)
        return x.numel(), x[:3].tolist(), x[-1].item()

    assert run(fn, 2).results[1] == (25_000_000, [0, 1, 2], 24_999_999)


def test_five_thousand_small_messages():
    def fn(mesh):
        if mesh.rank == 0:
            for i in range(5000):
                mesh.send(1, torch.tensor(i))
            return None
        return [mesh.recv(0).item() for _ in range(5000)]

    assert run(fn, 2).results[1] == list(range(5000))


def test_messages_that_nobody_receives_hold_nobody_up():
    def fn(mesh):
        for _ in range(3):
            mesh.send(1 - mesh.rank, torch.zeros(300_000))  # far more than a pipe holds
        return mesh.rank

    start = time.monotonic()
    result = run(fn, 2)
    assert time.monotonic() - start < 20  # and not the 60 s of a run that hangs
    assert result.results == [0, 1]
    assert result.trace.unreceived() == {(0, 1): 3, (1, 0): 3}


def test_a_rank_that_has_returned_still_delivers():
    def fn(mesh):
        if mesh.rank == 0:
            mesh.send(1, torch.ones(5_000_000))
            return None
        time.sleep(0.5)
        return mesh.recv(0).sum().item()

    assert run(fn, 2).results[1] == 5_000_000


def test_a_sender_does_not_wait_for_its_receiver():
    def fn(mesh):
        if mesh.rank == 0:
            mesh.send(1, torch.ones(1_000_000))
            mesh.send(2, torch.ones(1))
        elif mesh.rank == 1:
            mesh.recv(2)  # does not take the large one before its sender has gone on
            mesh.recv(0)
        else:
            mesh.send(1, mesh.recv(0))

    assert run(fn, 3).trace.bytes_received == [0, 4_000_004, 4]


def test_times_are_on_one_clock_that_begins_with_the_run():
    def fn(mesh):
        mesh.sendrecv(1 - mesh.rank, torch.ones(1), 1 - mesh.rank)  # both are there
        if mesh.rank == 0:
            time.sleep(1)
            mesh.send(1, torch.ones(1))
        else:
            mesh.recv(0)

    start = time.monotonic()
    trace = run(fn, 2).trace
    whole = time.monotonic() - start
    (*_, send), (*_, recv) = trace.by_rank
    assert 0 <= recv.start <= send.end <= recv.end <= whole
    assert recv.end - recv.start > 0.1  # the wait is seen
