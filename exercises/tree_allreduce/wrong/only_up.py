"""Forgets the way down: only rank 0 has the sum."""

import torch

CHECK = "values"
SAYS = "Rank 1 returned its own input here"


def tree_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    total, distance = tensor.clone(), 1
    while distance < n:
        if rank % (2 * distance) == distance:
            mesh.send(rank - distance, total)
            break
        if rank + distance < n:
            total += mesh.recv(rank + distance)
        distance *= 2
    return total
