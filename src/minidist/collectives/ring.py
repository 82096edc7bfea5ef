"""The two passes around the ring that allreduce, reduce_scatter and allgather are made of.

Both work in place on chunks: a matrix whose row k is chunk k, or a list of tensors of any lengths.
In every step each rank sends one chunk to the rank on its right and receives one from the rank on
its left, all ranks at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from minidist.mesh import Mesh


def reduce_pass_(
    mesh: Mesh,
    chunks: Tensor | Sequence[Tensor],
    combine_: Callable[[Tensor, Tensor], object] = Tensor.add_,
) -> None:
    """Add up: afterwards rank r holds the sum over all ranks of chunk (r + 1) mod N.

    combine_(mine, theirs) adds in place; another function makes it a product or a maximum.
    Steps: N - 1. Bytes sent per rank: (N - 1)/N of `chunks`.
    Source: the reduce-scatter half of the ring in Patarasuk and Yuan, 2009.
    """
    rank, world_size = mesh.rank, mesh.world_size
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step) % world_size]
        incoming = chunks[(rank - step - 1) % world_size]
        combine_(incoming, mesh.sendrecv(right, outgoing, left, like=incoming))


def gather_pass_(mesh: Mesh, chunks: Tensor | Sequence[Tensor], first: int) -> None:
    """Pass around: rank r starts with chunk `first` complete, and ends with all of them.

    `first` must go up by one from rank to rank, for example (r + 1) mod N after `reduce_pass_`.
    Steps: N - 1. Bytes sent per rank: (N - 1)/N of `chunks`.
    """
    rank, world_size = mesh.rank, mesh.world_size
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(world_size - 1):
        outgoing = chunks[(first - step) % world_size]
        incoming = chunks[(first - step - 1) % world_size]
        incoming.copy_(mesh.sendrecv(right, outgoing, left, like=incoming))
