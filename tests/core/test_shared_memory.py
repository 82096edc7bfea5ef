"""What is special about shared memory: blocks that are lent, taken back, and never left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from minidist import Mesh, run
from minidist.transports import Label, shared_memory
from minidist.transports.shared_memory import COPY_BELOW

LARGE = COPY_BELOW  # elements of float32: four times what is lent instead of copied


@pytest.fixture
def pair():
    """Two ranks in this process."""
    links = shared_memory.make_links(2, None)
    yield [Mesh(rank, 2, link, recv_timeout_s=2.0) for rank, link in enumerate(links)]
    links[0].close()


def test_a_large_message_is_received_without_a_copy(pair):
    pair[0].send(1, torch.ones(LARGE))
    x = pair[1].recv(0)
    memory = pair[1].link.memory
    assert memory.address <= x.data_ptr() < memory.address + len(memory.map)
    pair[0].send(1, torch.ones(16))
    y = pair[1].recv(0)
    assert not memory.address <= y.data_ptr() < memory.address + len(memory.map)


def test_steady_traffic_uses_two_blocks(pair):
    lane = pair[0].link
    total = torch.zeros(LARGE)
    for _ in range(50):
        pair[0].send(1, torch.ones(LARGE))
        total += pair[1].recv(0)
    assert total.unique().tolist() == [50.0]
    assert [len(blocks) for blocks in lane.outgoing[1].blocks.values()] == [2]


def test_what_is_kept_is_not_written_again(pair):
    kept = []
    for value in range(30):
        pair[0].send(1, torch.full((LARGE,), float(value)))
        x = pair[1].recv(0)
        if value % 3 == 0:
            kept.append(x)
        elif value % 3 == 1:
            kept.append(x[10:20])  # a view holds the whole block
        del x
    gc.collect()
    for number, x in enumerate(kept):
        value = 3 * (number // 2) + number % 2
        assert x.unique().tolist() == [value]
    blocks = sum(len(b) for b in pair[0].link.outgoing[1].blocks.values())
    assert 20 < blocks <= 30  # 20 are kept; the others were used again


def test_blocks_come_back_in_any_order_and_from_any_thread(pair):
    received = []
    for value in range(12):
        pair[0].send(1, torch.full((LARGE,), float(value)))
        received.append(pair[1].recv(0))
    dropper = threading.Thread(target=lambda: [received.pop(7) for _ in range(4)])
    dropper.start()
    dropper.join()
    rest = [x[0].item() for x in received]
    for value in range(100, 110):
        pair[0].send(1, torch.full((LARGE,), float(value)))
        assert pair[1].recv(0)[0].item() == value
    assert [x[0].item() for x in received] == rest == [0, 1, 2, 3, 4, 5, 6, 11]


def test_the_numpy_view_of_a_received_tensor_keeps_its_block(pair):
    pair[0].send(1, torch.full((LARGE,), 1.0))
    array = pair[1].recv(0).numpy()[5:9]
    for value in range(2, 8):
        pair[0].send(1, torch.full((LARGE,), float(value)))
        pair[1].recv(0)
    assert array.tolist() == [1.0] * 4


def test_more_than_a_lane_holds(pair, monkeypatch):
    pair[0].link.memory.lane_bytes = 1 << 20
    with pytest.raises(MemoryError, match="does the receiver keep every tensor it gets"):
        for _ in range(100):
            pair[0].send(1, torch.ones(LARGE))


def test_a_deadline_holds_and_a_late_message_is_taken(pair):
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        pair[1].link.get(0, 0.3)
    assert 0.29 < time.monotonic() - began < 0.6
    threading.Timer(0.2, lambda: pair[0].send(1, torch.tensor(4))).start()
    assert pair[1].recv(0).item() == 4


def test_a_clock_that_is_set_does_not_matter_for_long(pair, monkeypatch):
    """sem_timedwait goes by the calendar; somebody sets it an hour back while we wait."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    threading.Timer(0.3, lambda: pair[0].send(1, torch.tensor(4))).start()
    began = time.monotonic()
    assert pair[1].recv(0).item() == 4
    assert time.monotonic() - began < 1.5


def test_strided_and_marked_tensors(pair):
    base = torch.arange(24.0).reshape(4, 6)
    complex_ = torch.arange(6.0).to(torch.complex64) * 1j
    for x in (base.t(), base[:, ::2], base[0].expand(3, 6), complex_.conj(), complex_.conj().imag):
        pair[0].send(1, x)
        assert torch.equal(pair[1].recv(0), x)


def test_without_memfd_it_is_a_file_without_a_name(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    links = shared_memory.make_links(2, None)
    assert list(tmp_path.iterdir()) == []
    links[0].put(1, torch.ones(LARGE), Label(0))
    assert links[1].get(0, 1.0)[0].sum().item() == LARGE
    links[0].close()


def test_nothing_is_left_when_the_parent_is_killed(tmp_path):
    """kill -9 of the process that made the memory, in the middle of a run."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, pathlib, torch
            from minidist import run

            def fn(mesh):
                x = torch.ones(3_000_000)
                pathlib.Path({str(tmp_path)!r}, f"rank{{mesh.rank}}").write_text(str(os.getpid()))
                while True:
                    mesh.sendrecv(1 - mesh.rank, x, 1 - mesh.rank)

            run(fn, 2, transport="shared_memory")
            """
        )
    )
    before = set(Path("/dev/shm").iterdir())
    process = subprocess.Popen([sys.executable, str(script)])
    try:
        pids = [tmp_path / "rank0", tmp_path / "rank1"]
        deadline = time.monotonic() + 60
        while not all(p.exists() and p.read_text() for p in pids):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        time.sleep(0.2)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 5
    while any(Path("/proc", p.read_text()).exists() for p in pids):
        assert time.monotonic() < deadline, "a rank is still there"
        time.sleep(0.02)
    new = {p.name for p in set(Path("/dev/shm").iterdir()) - before}
    assert not {name for name in new if "minidist" in name}


def test_ranks_hold_no_file_descriptor_per_message():
    def fn(mesh):
        def files():
            return len(os.listdir("/proc/self/fd"))

        counts = []
        for _ in range(3):
            for _ in range(20):
                mesh.sendrecv(1 - mesh.rank, torch.ones(LARGE), 1 - mesh.rank)
            counts.append(files())
        return len(set(counts)) == 1

    assert run(fn, 2, transport="shared_memory").results == [True, True]
