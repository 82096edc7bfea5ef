"""allreduce: every rank gives a tensor, every rank gets the sum of all of them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from minidist.collectives.chunks import gloo_chunks, join, split
from minidist.collectives.group import group
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


def ring_allreduce_(
    mesh: Mesh,
    tensor: Tensor,
    combine_: Callable[[Tensor, Tensor], object] = Tensor.add_,
) -> None:
    """The same ring in place and in gloo's order: it leaves in `tensor` the bits that gloo would.

    Two things differ from `ring_allreduce`, and none of them changes the cost: the ring turns left
    (it is our ring on ranks that are numbered backwards), and the chunks are cut where gloo cuts
    them, so that nothing is padded or copied.
    tensor: contiguous (else RuntimeError), any shape and length, the same on every rank.
    combine_(mine, theirs) adds in place; another function makes it a product or a maximum.
    Source: gloo/allreduce.cc, ring.
    """
    world_size = mesh.world_size
    flat = tensor.detach().view(-1)
    cuts = gloo_chunks(world_size, flat.numel(), flat.element_size())
    backwards = group(mesh, range(world_size - 1, -1, -1))
    chunks = [flat[cuts[-k % world_size]] for k in range(world_size)]  # gloo's c starts at c - 1
    reduce_pass_(backwards, chunks, combine_)
    gather_pass_(backwards, chunks, first=(backwards.rank + 1) % world_size)
