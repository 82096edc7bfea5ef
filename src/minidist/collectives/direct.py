"""Allreduce in place where every rank reaches every other directly, and waiting is what costs.

Both functions send all there is to send before they receive anything. On memory that ranks share, a
rank then sleeps at most once per shot, and what it adds lies in shared memory already. They need
sends that are buffered: on NCCL, or any wire on which a send waits for its receiver, use the ring.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.mesh import Mesh

ADD_ELEMENTS = 1 << 16  # how much of a sum is finished before the next part: it stays in the cache


def one_shot_allreduce_(mesh: Mesh, tensor: Tensor) -> None:
    """Sum over ranks, in place: everybody sends everything to everybody and adds for itself.

    tensor: any shape and strides, the same on every rank. Bit for bit the same on every rank: all
    add in the order of the ranks.
    Steps: one, if a rank can send to all others at once. Bytes sent per rank: (N - 1) T. The least
    waiting of all, so the fastest for small tensors; and for two ranks no other sends less.
    Raises MessageMismatch if a rank's dtype or shape differs.
    """
    rank, world_size = mesh.rank, mesh.world_size
    if world_size == 1:
        return
    others = [(rank + hop) % world_size for hop in range(1, world_size)]
    for dst in others:
        mesh.send(dst, tensor)
    received = {src: mesh.recv(src, like=tensor) for src in others}
    if rank == 0 or world_size == 2:  # x + y and y + x have the same bits
        _add_all(tensor, [received[src] for src in sorted(received)])
        return
    parts = [tensor if src == rank else received[src] for src in range(world_size)]
    _add_all(parts[0], parts[1:])  # what was received is ours to overwrite
    tensor.copy_(parts[0])


def two_shot_allreduce_(mesh: Mesh, tensor: Tensor) -> None:
    """Sum over ranks, in place: rank r adds up everybody's chunk r and sends the sum to everybody.

    tensor: any shape and strides, the same on every rank. Bit for bit the same on every rank.
    Steps: two, if a rank can send to all others at once. Bytes sent per rank: 2(N - 1)/N T, the
    least there is; nothing is padded, so chunks may differ by one element.
    Raises MessageMismatch if a rank's dtype or chunk size differs.
    """
    rank, world_size = mesh.rank, mesh.world_size
    flat = tensor.reshape(-1)  # a copy if it must be
    chunks = flat.tensor_split(world_size)
    others = [(rank + hop) % world_size for hop in range(1, world_size)]
    for dst in others:
        mesh.send(dst, chunks[dst])
    total = chunks[rank]
    _add_all(total, [mesh.recv(src, like=total) for src in others])
    for dst in others:
        mesh.send(dst, total)
    for src in others:
        chunks[src].copy_(mesh.recv(src, like=chunks[src]))
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.view(tensor.shape))


def _add_all(total: Tensor, parts: list[Tensor]) -> None:
    """total += each of the parts in turn, a piece at a time."""
    if not (total.is_contiguous() and all(part.is_contiguous() for part in parts)):
        for part in parts:
            total += part
        return
    pieces = [x.view(-1).split(ADD_ELEMENTS) for x in (total, *parts)]
    for total_piece, *others in zip(*pieces, strict=True):
        for piece in others:
            torch.add(total_piece, piece, out=total_piece)
