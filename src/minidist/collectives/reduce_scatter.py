"""reduce_scatter: every rank gives a tensor, rank r gets the r-th part of the sum."""

from __future__ import annotations

from torch import Tensor

from minidist.collectives.chunks import split
from minidist.collectives.ring import reduce_pass_
from minidist.mesh import Mesh


def reduce_scatter(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Rank r's part of the sum over ranks: rows r * d/N to (r + 1) * d/N, with d = shape[0].

    tensor: shape (d, ...), the same on every rank, N divides d. Returns a new tensor of shape
    (d/N, ...); the input is left alone.
    Steps: N - 1. Bytes sent per rank: (N - 1)/N of the tensor.
    Raises ValueError if N does not divide d, as torch.distributed.reduce_scatter_tensor does.
    """
    rank, world_size = mesh.rank, mesh.world_size
    if tensor.dim() == 0 or tensor.shape[0] % world_size:
        size = "no dimension" if tensor.dim() == 0 else f"size {tensor.shape[0]} in dimension 0"
        raise ValueError(
            f"reduce_scatter cuts dimension 0 into {world_size} equal parts, but this tensor has "
            f"{size}; pad it first"
        )
    # reduce_pass_ leaves chunk (r + 1) mod N on rank r. Rolling the rows by one beforehand puts
    # what the caller calls chunk r there.
    chunks = split(tensor, world_size).roll(1, dims=0)
    reduce_pass_(mesh, chunks)
    part = chunks[(rank + 1) % world_size]
    return part.reshape(tensor.shape[0] // world_size, *tensor.shape[1:]).clone()
