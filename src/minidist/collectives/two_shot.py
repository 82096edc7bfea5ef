"""Allreduce in two shots: everyone sends straight to whoever needs it, nothing is passed on."""

from __future__ import annotations

from torch import Tensor

from minidist.collectives.chunks import join, split
from minidist.mesh import Mesh


def two_shot_allreduce(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Sum over ranks: rank r adds up everybody's chunk r, then gives it to everybody.

    tensor: any shape and length, the same on every rank. Returns a new tensor, bit for bit the
    same on every rank; the input is left alone.
    Steps: 2(N - 1) of one chunk for a rank that sends one message at a time, like the ring; but no
    message waits for more than one other, so where all ranks reach all others directly (memory
    that they share, a switch) it is two steps long.
    Bytes sent per rank: 2(N - 1)/N T.
    Raises MessageMismatch if a rank's dtype or chunk size differs.
    """
    rank, world_size = mesh.rank, mesh.world_size
    chunks = split(tensor, world_size)
    total = chunks[rank]
    for hop in range(1, world_size):
        right, left = (rank + hop) % world_size, (rank - hop) % world_size
        total += mesh.sendrecv(right, chunks[right], left)
    for hop in range(1, world_size):
        right, left = (rank + hop) % world_size, (rank - hop) % world_size
        chunks[left] = mesh.sendrecv(right, total, left)
    return join(chunks, like=tensor)
