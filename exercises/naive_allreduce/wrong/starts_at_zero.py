"""Rank 0 starts with zeros instead of its own tensor, and so leaves itself out."""

import torch

CHECK = "values"
SAYS = "the part of rank 0 is missing"


def naive_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    if mesh.world_size == 1:
        return tensor.clone()
    if mesh.rank == 0:
        total = torch.zeros_like(tensor)
        for src in range(1, mesh.world_size):
            total += mesh.recv(src)
        for dst in range(1, mesh.world_size):
            mesh.send(dst, total)
        return total
    mesh.send(0, tensor)
    return mesh.recv(0)
