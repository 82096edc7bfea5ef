"""What is special about TCP: a stream that gives and takes any part of what it is asked for."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
import torch

from minidist import PeerLost, collectives, run
from minidist.transports import Label, LostConnection, tcp
from minidist.transports.header import MAX_DIMS, NBYTES, pack_header, unpack_header


@pytest.fixture
def pair():
    """Two links in this process, with buffers that are full soon."""
    links = tcp.make_links(2, None)
    for link in links:
        for connection in link.sockets.values():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    yield links
    for link in links:
        link.close()


def frame(tensor, number=0):
    elements = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return pack_header(tensor, Label(number)) + elements


def test_a_message_may_come_byte_by_byte(pair):
    wire = pair[0].sockets[1]
    x, y = torch.arange(5.0), torch.tensor(True)
    data = frame(x) + frame(torch.empty(0, 2)) + frame(y, 7)

    def drip():
        for i in range(len(data)):
            assert wire.send(data[i : i + 1]) == 1
            if i % 50 == 0:
                time.sleep(0.001)

    sender = threading.Thread(target=drip)
    sender.start()
    got = [pair[1].get(0, 5.0) for _ in range(3)]
    sender.join()
    assert torch.equal(got[0][0], x)
    assert got[1][0].shape == (0, 2)
    assert got[2][0].shape == () and got[2][0].dtype == torch.bool and got[2][1].number == 7


@pytest.mark.parametrize("cut", [1, NBYTES - 1, NBYTES, NBYTES + 1, NBYTES + 19])
def test_a_deadline_in_the_middle_of_a_message(pair, cut):
    wire = pair[0].sockets[1]
    x = torch.arange(5.0)
    data = frame(x) + frame(x + 1, 1)
    wire.send(data[:cut])
    for _ in range(3):
        with pytest.raises(TimeoutError):
            pair[1].get(0, 0.01)
    wire.send(data[cut:])
    assert torch.equal(pair[1].get(0, 5.0)[0], x)
    assert torch.equal(pair[1].get(0, 5.0)[0], x + 1)


def test_a_deadline_in_the_middle_of_an_exchange(pair):
    """Half of ours has left when the time is up; the rest must follow, and nothing else before."""
    big, small = torch.arange(5_000_000.0), torch.tensor(3.0)
    with pytest.raises(TimeoutError):
        pair[0].exchange(1, big, Label(0), 1, 0.05)
    pair[0].put(1, small, Label(1))
    big.fill_(-1)
    assert torch.equal(pair[1].get(0, 5.0)[0], torch.arange(5_000_000.0))
    assert pair[1].get(0, 5.0)[0].item() == 3.0
    pair[1].put(0, small, Label(0))
    assert pair[0].get(1, 5.0)[0].item() == 3.0


def test_buffered_messages_keep_their_order_and_their_values(pair):
    x = torch.zeros(30_000)
    for value in range(200):
        x.fill_(value)
        pair[0].put(1, x, Label(value))
    x.fill_(-1)
    for value in range(200):
        tensor, label = pair[1].get(0, 5.0)
        assert label.number == value and tensor.unique().tolist() == [value]


def test_nothing_overtakes_what_a_carrier_still_holds(pair):
    """The receiver makes room again and again, which a later message must not take."""
    received = []
    reader = threading.Thread(
        target=lambda: received.extend(pair[1].get(0, 5.0) for _ in range(300))
    )
    reader.start()
    for number in range(300):
        x = torch.full((60_000 if number % 2 else 10,), float(number))
        pair[0].put(1, x, Label(number))
    reader.join()
    assert [label.number for _, label in received] == [*range(300)]
    assert all(x.unique().tolist() == [number] for number, (x, _) in enumerate(received))


def test_both_directions_at_once(pair):
    x = torch.arange(3_000_000)
    results = {}

    def side(me):
        results[me] = pair[me].exchange(1 - me, x + me, Label(0), 1 - me, 10.0)[0]

    sides = [threading.Thread(target=side, args=(me,)) for me in range(2)]
    [s.start() for s in sides]
    [s.join() for s in sides]
    assert torch.equal(results[0], x + 1) and torch.equal(results[1], x)


def test_a_peer_that_is_gone(pair):
    pair[0].put(1, torch.ones(3), Label(0))
    pair[0].close()
    assert pair[1].get(0, 5.0)[0].numel() == 3  # what had arrived still counts
    began = time.monotonic()
    with pytest.raises(LostConnection):
        pair[1].get(0, 5.0)
    with pytest.raises(LostConnection):
        for _ in range(20):
            pair[1].put(0, torch.ones(100_000), Label(0))
            time.sleep(0.01)
    assert time.monotonic() - began < 1


def test_a_rank_notices_by_itself_that_another_is_gone():
    """Nobody but the two ranks may hold their connection open, or its end would not be seen."""

    def fn(mesh):
        if mesh.rank == 1:
            mesh.link.close()  # as the kernel does for a process that dies
            time.sleep(30)
        mesh.recv(1)

    with pytest.raises(PeerLost, match="rank 0 lost its connection to rank 1 at step 0"):
        run(fn, 3, transport="tcp", recv_timeout_ms=10_000)  # and not RecvTimeout


def test_small_messages_are_not_collected():
    def fn(mesh):
        return [
            connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for connection in mesh.link.sockets.values()
        ]

    assert all(map(all, run(fn, 3, transport="tcp").results))


def test_a_stranger_at_the_door(monkeypatch):
    """Somebody else may connect to the port between our own two calls."""
    strangers = []
    create = socket.create_connection

    def a_stranger_first(address, **options):
        if not strangers:
            strangers.append(create(address))
        return create(address, **options)

    monkeypatch.setattr(socket, "create_connection", a_stranger_first)
    links = tcp.make_links(2, None)
    links[0].put(1, torch.tensor(5), Label(0))
    assert links[1].get(0, 5.0)[0].item() == 5
    assert strangers[0].recv(1) == b""  # it was sent away
    for end in (*links, *strangers):
        end.close()


def test_headers():
    for shape in ((), (0,), (3,), (2, 0, 4), (1,) * MAX_DIMS):
        for dtype in (torch.float32, torch.bool, torch.float8_e4m3fn, torch.complex128):
            x = torch.empty(shape, dtype=dtype)
            label = Label(5, "ring_allreduce", 2**32 - 1)
            assert unpack_header(pack_header(x, label)) == (dtype, shape, label)
    for name in vars(collectives):  # or two ranks in one collective would seem to be in two
        assert unpack_header(pack_header(torch.empty(1), Label(0, name))).label.collective == name
    with pytest.raises(ValueError, match="at most 15 dimensions, this tensor has 16"):
        pack_header(torch.empty((1,) * 16), Label(0))
    with pytest.raises(ValueError, match="no header"):
        unpack_header(bytes(NBYTES))
    damaged = bytearray(pack_header(torch.empty(3), Label(0)))
    damaged[72] ^= 1  # the first dimension
    with pytest.raises(ValueError, match="no header"):
        unpack_header(damaged)


def test_too_few_file_descriptors():
    import resource

    def open_files():
        return len(os.listdir("/proc/self/fd"))

    run(lambda mesh: None, 1)
    before = open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 30, hard))
    try:
        with pytest.raises(OSError, match=r"could not start 8 ranks: .*They need 56 free file"):
            run(lambda mesh: None, 8, transport="tcp")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_files() == before
