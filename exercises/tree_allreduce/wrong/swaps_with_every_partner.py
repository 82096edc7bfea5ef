"""Recursive doubling: whole tensors are swapped at distance 1, 2, 4; right for powers of two."""

import torch

CHECK = "values"
SAYS = "the world size is not a power of two"


def tree_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    total, distance = tensor.clone(), 1
    while distance < n:
        partner = rank ^ distance
        if partner < n:
            total += mesh.sendrecv(partner, total, partner)
        distance *= 2
    return total
