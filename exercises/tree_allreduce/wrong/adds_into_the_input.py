"""Adds into the tensor that it was given."""

import torch

CHECK = "input"
SAYS = "changed its input"


def tree_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    total, distance = tensor, 1
    while distance < n:
        if rank % (2 * distance) == distance:
            mesh.send(rank - distance, total)
            break
        if rank + distance < n:
            total += mesh.recv(rank + distance)
        distance *= 2

    if rank:
        distance = rank & -rank
        total = mesh.recv(rank - distance)
    while distance > 1:
        distance //= 2
        if rank + distance < n:
            mesh.send(rank + distance, total)
    return total.clone()
