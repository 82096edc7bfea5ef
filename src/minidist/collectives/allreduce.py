"""allreduce: every rank gives a tensor, every rank gets the sum of all of them."""

from __future__ import annotations

from torch import Tensor

from minidist.collectives.chunks import join, split
from minidist.collectives.ring import gather_pass_, reduce_pass_
from minidist.mesh import Mesh


def naive_allreduce(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Sum over ranks, by way of rank 0: it collects everything, adds, and hands the sum out.

    tensor: any shape, the same on every rank. Returns a new tensor; the input is left alone.
    With N ranks and a tensor of T bytes, rank 0 receives (N - 1) T and sends (N - 1) T while each
    other rank sends T: 2(N - 1) steps of T bytes through one place.
    Raises MessageMismatch if a rank's dtype or shape differs.
    """
    total = tensor.detach().clone()
    if mesh.rank == 0:
        for src in range(1, mesh.world_size):
            total += mesh.recv(src, like=tensor)
        for dst in range(1, mesh.world_size):
            mesh.send(dst, total)
        return total
    mesh.send(0, total)
    return mesh.recv(0, like=tensor)


def ring_allreduce(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Sum over ranks, in two passes around a ring.

    tensor: any shape, strides and element count, the same on every rank. Returns a new tensor,
    bit for bit the same on every rank; the input is left alone.
    Steps: 2(N - 1). Bytes sent per rank: 2(N - 1)/N of the tensor padded to a multiple of N, and
    no allreduce can send less (Patarasuk and Yuan, 2009). No rank is special.
    Raises MessageMismatch if a rank's dtype or chunk size differs.
    """
    chunks = split(tensor, mesh.world_size)
    reduce_pass_(mesh, chunks)
    gather_pass_(mesh, chunks, first=(mesh.rank + 1) % mesh.world_size)
    return join(chunks, like=tensor)
