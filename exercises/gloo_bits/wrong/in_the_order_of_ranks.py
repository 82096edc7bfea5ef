"""Collects everything on rank 0 and adds in the order of the ranks."""

import torch

CHECK = "messages"
SAYS = "this is the naive way"


def gloo_bits(mesh, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    if mesh.rank == 0:
        for src in range(1, mesh.world_size):
            total += mesh.recv(src)
        for dst in range(1, mesh.world_size):
            mesh.send(dst, total)
        return total
    mesh.send(0, tensor)
    return mesh.recv(0)
