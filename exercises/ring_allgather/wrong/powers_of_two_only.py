"""Exchanges with partner rank XOR distance: for 3, 5 or 7 ranks some partners do not exist."""

import torch

CHECK = "runs"
SAYS = "the world size is not a power of two"


def ring_allgather(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    rows = torch.zeros(n, *tensor.shape, dtype=tensor.dtype)
    rows[rank] = tensor
    distance = 1
    while distance < n:
        partner, first = rank ^ distance, rank // distance * distance
        theirs = partner // distance * distance
        block = rows[first : first + distance]
        rows[theirs : theirs + distance] = mesh.sendrecv(partner, block, partner)
        distance *= 2
    return rows
