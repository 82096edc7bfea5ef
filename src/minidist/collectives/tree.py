"""Allreduce along a tree: few steps, but every step carries the whole tensor."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from minidist.collectives.broadcast import broadcast
from minidist.mesh import Mesh


def reduce(
    mesh: Mesh,
    tensor: Tensor,
    dst: int = 0,
    combine_: Callable[[Tensor, Tensor], object] = Tensor.add_,
) -> Tensor:
    """The sum over ranks on rank `dst`; elsewhere a partial sum that nobody should use.

    tensor: any shape, the same on every rank. Returns a new tensor; the input is left alone.
    combine_(mine, theirs) adds in place; another function makes it a product or a maximum.
    Steps: ceil(log2 N) of T bytes. Bytes sent: T per rank but `dst`.
    Raises ValueError if `dst` is no rank, MessageMismatch if dtype or shape differ.
    """
    rank, world_size = mesh.rank, mesh.world_size
    if not 0 <= dst < world_size:
        raise ValueError(f"dst is {dst}, but ranks go from 0 to {world_size - 1}")
    virtual = (rank - dst) % world_size
    total = tensor.detach().clone()
    distance = 1
    while distance < world_size:
        if virtual % (2 * distance) == distance:
            mesh.send((rank - distance) % world_size, total)
            break
        if virtual + distance < world_size:
            combine_(total, mesh.recv((rank + distance) % world_size, like=tensor))
        distance *= 2
    return total


def tree_allreduce(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Sum over ranks: pairs add, then pairs of pairs, and the sum comes back the same way.

    tensor: any shape, the same on every rank. Returns a new tensor, bit for bit the same on every
    rank; the input is left alone.
    Steps: 2 ceil(log2 N) of T bytes: better than the ring's 2(N - 1) when alpha counts, worse by
    about log2 N when bytes do. Bytes sent: at most T up and ceil(log2 N) T down.
    Raises MessageMismatch if a rank's dtype or shape differs.
    """
    return broadcast(mesh, reduce(mesh, tensor))
