"""Shared memory: the sender writes each message once, and the receiver works on it where it lies.

From every rank to every other leads a lane, a stretch of memory that both map. The sender lays a
message down in a block of its lane and raises the lane's semaphore; the receiver gets a tensor
whose memory is that block. When the last reference to the tensor is gone, the block is free for
another message. So `incoming += mesh.sendrecv(...)` adds straight from shared memory, and the
sender never waits: if no block is free, it takes new memory at the end of the lane. A lane is as
large as the machine allows but costs only the pages that were ever touched.

The memory has no name. It lives as long as a process maps it, so nothing can be left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
import time
from collections import defaultdict, deque
from functools import cache
from multiprocessing import reduction
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minidist.transports import Label, Link
from minidist.transports.header import NBYTES, pack_header, plain, unpack_header

LANE_BYTES = 1 << 34  # of address space, for each ordered pair of ranks
ALL_BYTES = 1 << 45  # of address space, for all lanes together
FRONT = 64 + NBYTES  # in front of the elements: three words of ours, then the header
COPY_BELOW = 1 << 14  # bytes; a copy of less than this is cheaper than lending the block
TRIES = 8  # blocks that a sender looks at before it takes new memory
SPIN_S = 50e-6  # about what it costs to put a process to sleep and to wake it

# The words in front of a block. A block may be written again once the first two are 0: the receiver
# has given back its elements, and has gone on to the next message, whose place stands in the third.
LENT, CURRENT, NEXT = range(3)
SEMAPHORE = 64  # where in a lane it lies, behind the words of the block that comes before the first
FIRST = 256  # where in a lane the first block may lie


class SharedMemoryLink(Link):
    """Rank r's outgoing and incoming lanes. For one thread."""

    def __init__(self, memory: _Memory, rank: int, world_size: int, began: float):
        self.memory = memory
        self.rank = rank
        self.world_size = world_size
        self.began = began  # time.monotonic() is one clock for all processes of a machine
        self.outgoing: dict[int, _Outgoing] = {}
        self.incoming: dict[int, _Incoming] = {}

    def now(self) -> float:
        return time.monotonic() - self.began

    def put(self, dst: int, tensor: Tensor, label: Label) -> float:
        if dst not in self.outgoing:
            self.outgoing[dst] = _Outgoing(self.memory, self.rank, dst)
        self.outgoing[dst].put(tensor, label)
        return self.now()

    def get(self, src: int, timeout_s: float) -> tuple[Tensor, Label]:
        if src not in self.incoming:
            self.incoming[src] = _Incoming(self.memory, src, self.rank)
        return self.incoming[src].get(timeout_s)

    def close(self) -> None:
        self.memory.close()

    def __reduce__(self) -> Any:
        fd = reduction.DupFd(self.memory.fd)  # goes along to the process that is being started
        return _attach, (fd, self.rank, self.world_size, self.began)


class _Outgoing:
    """The sender's side of a lane."""

    def __init__(self, memory: _Memory, src: int, dst: int):
        self.memory = memory
        self.lane = self.last = memory.lane(src, dst)
        self.arrived = _Semaphore(memory, self.lane + SEMAPHORE)
        self.end = self.lane + FIRST  # no block lies behind this
        self.blocks: defaultdict[int, deque[int]] = defaultdict(deque)  # by size, oldest first

    def put(self, tensor: Tensor, label: Label) -> None:
        header = pack_header(tensor, label)
        memory, words = self.memory, self.memory.words
        nbytes = tensor.numel() * tensor.element_size()
        block = self._find_block(FRONT + nbytes)
        words[block // 8 + LENT] = words[block // 8 + CURRENT] = 1
        memory.map[block + 64 : block + FRONT] = header
        if nbytes:
            elements = tensor if _is_plain(tensor) else plain(tensor)
            ctypes.memmove(memory.address + block + FRONT, elements.data_ptr(), nbytes)
        words[self.last // 8 + NEXT] = block
        self.last = block
        self.arrived.post()

    def _find_block(self, nbytes: int) -> int:
        size = max(10, (nbytes - 1).bit_length())  # powers of two: a block fits many messages
        blocks, words = self.blocks[size], self.memory.words
        for _ in range(min(TRIES, len(blocks))):
            block = blocks[0]
            blocks.rotate(-1)
            if not words[block // 8 + LENT] and not words[block // 8 + CURRENT]:
                return block
        block = self.end
        self.end += 1 << size
        if self.end > self.lane + self.memory.lane_bytes:
            raise MemoryError(
                f"{self.memory.lane_bytes >> 30} GiB of messages from one rank to another are "
                "neither received nor released: does the receiver keep every tensor it gets?"
            )
        blocks.append(block)
        return block


class _Incoming:
    """The receiver's side of a lane."""

    def __init__(self, memory: _Memory, src: int, dst: int):
        self.memory = memory
        self.current = memory.lane(src, dst)
        self.arrived = _Semaphore(memory, self.current + SEMAPHORE)

    def get(self, timeout_s: float) -> tuple[Tensor, Label]:
        self.arrived.wait(timeout_s)
        memory, words = self.memory, self.memory.words
        block = words[self.current // 8 + NEXT]
        words[self.current // 8 + CURRENT] = 0
        self.current = block
        dtype, shape, label = header = unpack_header(memory.map[block + 64 : block + FRONT])
        nbytes = header.nbytes
        if nbytes >= COPY_BELOW:
            lent = np.ndarray.__new__(_Lent, (nbytes,), np.uint8, memory.map, block + FRONT)
            lent.word = words[block // 8 + LENT : block // 8 + LENT + 1]
            tensor = torch.frombuffer(lent, dtype=dtype)
            return tensor if len(shape) == 1 else tensor.view(shape), label
        tensor = torch.empty(shape, dtype=dtype)
        if nbytes:
            ctypes.memmove(tensor.data_ptr(), memory.address + block + FRONT, nbytes)
        words[block // 8 + LENT] = 0
        return tensor, label


class _Lent(np.ndarray):
    """The elements of a block, which goes back to its sender when nobody looks at them any more."""

    word: memoryview

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # a view of a view has no block of its own
            self.word[0] = 0


def _lane_bytes(world_size: int) -> int:
    return min(LANE_BYTES, ALL_BYTES // world_size**2 & -mmap.PAGESIZE)


class _Memory:
    """Memory without a name that all ranks map, and that one of them made."""

    def __init__(self, fd: int, world_size: int):
        self.fd = fd
        self.world_size = world_size
        self.lane_bytes = _lane_bytes(world_size)
        self.map = mmap.mmap(fd, self.lane_bytes * world_size**2)
        self.words = memoryview(self.map).cast("Q")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def lane(self, src: int, dst: int) -> int:
        """Where the lane from `src` to `dst` begins."""
        return (src * self.world_size + dst) * self.lane_bytes

    def close(self) -> None:
        """The file descriptor only: what is mapped stays until nobody uses it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _is_plain(tensor: Tensor) -> bool:
    """Whether its memory can be copied as it is."""
    return tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


class _Semaphore:
    """A POSIX semaphore that lies in shared memory."""

    def __init__(self, memory: _Memory, place: int):
        self.address = memory.address + place
        self.spin_s = SPIN_S if memory.world_size <= _processors() else 0.0

    def make(self) -> None:
        if _libc().sem_init(self.address, 1, 0):
            code = ctypes.get_errno()
            raise OSError(code, "shared_memory needs semaphores between processes, as Linux has")

    def post(self) -> None:
        _libc().sem_post(self.address)

    def wait(self, timeout_s: float) -> None:
        """Take one, TimeoutError if there is none until then.

        Look for a moment first if each rank has a processor of its own; then sleep.
        """
        libc = _libc()
        if not libc.sem_trywait(self.address):
            return
        began = time.monotonic()
        while (waited := time.monotonic() - began) < min(self.spin_s, timeout_s):
            if not libc.sem_trywait(self.address):
                return
        while waited < timeout_s:
            # sem_timedwait goes by the calendar's clock, which somebody may set: sleep in slices.
            until = time.time() + min(1.0, timeout_s - waited)
            when = _Timespec(int(until), int(until % 1 * 1e9))
            if not libc.sem_timedwait(self.address, ctypes.byref(when)):
                return
            if ctypes.get_errno() not in (errno.ETIMEDOUT, errno.EINTR):
                raise OSError(ctypes.get_errno(), "sem_timedwait")
            waited = time.monotonic() - began
        raise TimeoutError


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


@cache
def _libc() -> Any:
    """The C library's semaphores."""
    libc = ctypes.CDLL(None, use_errno=True)
    for function in (libc.sem_post, libc.sem_trywait):
        function.argtypes = (ctypes.c_void_p,)
    libc.sem_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
    libc.sem_timedwait.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return libc


@cache
def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def make_links(world_size: int, context: BaseContext | None = None) -> list[SharedMemoryLink]:
    """One link per rank, all on the same memory."""
    if os.name != "posix":
        raise OSError(errno.ENOSYS, "shared_memory needs semaphores between processes")
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("minidist")
    else:
        with tempfile.TemporaryFile() as file:  # has no name either
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, world_size**2 * _lane_bytes(world_size))
        memory = _Memory(fd, world_size)
    except OSError:
        os.close(fd)
        raise
    for src in range(world_size):
        for dst in range(world_size):
            if src != dst:
                _Semaphore(memory, memory.lane(src, dst) + SEMAPHORE).make()
    began = time.monotonic()
    return [SharedMemoryLink(memory, rank, world_size, began) for rank in range(world_size)]


def open_memory(path: str, world_size: int) -> _Memory:
    """The memory behind a file descriptor that the kernel shows as a path. Raises OSError."""
    return _Memory(os.open(path, os.O_RDWR), world_size)


def _attach(fd: Any, rank: int, world_size: int, began: float) -> SharedMemoryLink:
    """The link in the process of its rank."""
    memory = _Memory(fd.detach(), world_size)
    memory.close()
    return SharedMemoryLink(memory, rank, world_size, began)


def needs(world_size: int) -> str:
    """What a run needs of the machine, for the message when it does not get it."""
    lanes = world_size * (world_size - 1)
    return f"Linux, and {lanes} x {LANE_BYTES >> 30} GiB of address space (ulimit -v)"
