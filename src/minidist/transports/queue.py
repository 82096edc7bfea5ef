"""The default transport: an N x N grid of queues between N processes.

`grid[src][dst]` has one producer and one consumer, so a message needs no tag and its order is the
order of the sends. Queues carry bytes and not tensors: a tensor on a queue is a handle to shared
memory that dies with the process that made it.
"""

from __future__ import annotations

import queue
import time
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch import Tensor

from minidist.transports import Label, Link
from minidist.transports.header import plain, raw_bytes


class QueueLink(Link):
    """Rank r's row (to send) and column (to receive) of the grid."""

    def __init__(self, outgoing: list[Any], incoming: list[Any], began: float):
        self.outgoing = outgoing  # outgoing[dst]; None at our own place
        self.incoming = incoming  # incoming[src]
        self.began = began  # time.monotonic() is one clock for all processes of a machine

    def now(self) -> float:
        return time.monotonic() - self.began

    def put(self, dst: int, tensor: Tensor, label: Label) -> float:
        self.outgoing[dst].put((label, tensor.dtype, tuple(tensor.shape), to_bytes(tensor)))
        return self.now()

    def get(self, src: int, timeout_s: float) -> tuple[Tensor, Label]:
        try:
            label, dtype, shape, data = self.incoming[src].get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        return from_bytes(data, dtype, shape), label


def make_links(world_size: int, context: BaseContext) -> list[QueueLink]:
    """One link per rank; a rank gets only its own row and column of the grid."""
    ranks = range(world_size)
    grid = [[context.Queue() if src != dst else None for dst in ranks] for src in ranks]
    began = time.monotonic()
    return [QueueLink(grid[rank], [row[rank] for row in grid], began) for rank in ranks]


def needs(world_size: int) -> str:
    """What a run needs of the machine, for the message when it does not get it."""
    queues = world_size * (world_size - 1)
    return f"{2 * queues} free file descriptors (ulimit -n), {3 * queues} semaphores in /dev/shm"


def to_bytes(tensor: Tensor) -> bytes:
    """The elements of a tensor of any dtype, device and strides, in row-major order."""
    return raw_bytes(plain(tensor)).tobytes()


def from_bytes(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A new tensor from what `to_bytes` gave."""
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
