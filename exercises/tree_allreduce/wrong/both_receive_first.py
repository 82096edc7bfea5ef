"""Waits for the sum before it has sent its part."""

import torch

CHECK = "terminates"
SAYS = "Deadlock"


def tree_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    total, distance = tensor.clone(), 1
    if rank:
        parent = rank - (rank & -rank)
        total = mesh.recv(parent)
        mesh.send(parent, tensor)
    while distance < n and rank % (2 * distance) == 0:
        if rank + distance < n:
            total += mesh.recv(rank + distance)
            mesh.send(rank + distance, total)
        distance *= 2
    return total
