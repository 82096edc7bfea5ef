"""Rank 0 sends the sum to rank 1 once more at the end; nobody receives it."""

import torch

CHECK = "leftover"
SAYS = "The next collective would find what is left"


def naive_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    if mesh.rank == 0:
        for src in range(1, mesh.world_size):
            total += mesh.recv(src)
        for dst in range(1, mesh.world_size):
            mesh.send(dst, total)
        if mesh.world_size > 1:
            mesh.send(1, total)
        return total
    mesh.send(0, tensor)
    return mesh.recv(0)
