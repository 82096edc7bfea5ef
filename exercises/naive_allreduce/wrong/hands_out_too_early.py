"""Answers each rank as soon as its part has come: the early ones get a sum of a few ranks only."""

import torch

CHECK = "values"
SAYS = "the world size is more than 2"


def naive_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    if mesh.rank == 0:
        for src in range(1, mesh.world_size):
            total += mesh.recv(src)
            mesh.send(src, total)
        return total
    mesh.send(0, tensor)
    return mesh.recv(0)
