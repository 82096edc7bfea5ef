"""Never asks whether the rank to receive from exists: fails unless N is a power of two."""

import torch

CHECK = "runs"
SAYS = "the world size is not a power of two"


def tree_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    total, distance = tensor.clone(), 1
    while distance < n and rank % (2 * distance) == 0:
        total += mesh.recv(rank + distance)
        distance *= 2
    if rank:
        mesh.send(rank - distance, total)
        total = mesh.recv(rank - distance)
    while distance > 1:
        distance //= 2
        mesh.send(rank + distance, total)
    return total
