"""Adds what comes down, where the sum should replace what was there."""

import torch

CHECK = "values"
SAYS = "is counted twice"


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

    while distance > 1 or rank % 2 == 0 and distance:
        if distance < n and rank % (2 * distance) == 0 and rank + distance < n:
            mesh.send(rank + distance, total)
        if distance < n and rank % (2 * distance) == distance:
            total += mesh.recv(rank - distance)
        distance //= 2
    if rank % 2:
        total += mesh.recv(rank - 1)
    return total
