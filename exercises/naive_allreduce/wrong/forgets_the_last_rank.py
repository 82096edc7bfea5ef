"""Off by one: the loop that hands out the sum ends one rank too early, so the last one waits."""

import torch

CHECK = "terminates"
SAYS = "which has already returned"


def naive_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    if mesh.rank == 0:
        for src in range(1, mesh.world_size):
            total += mesh.recv(src)
        for dst in range(1, mesh.world_size - 1):
            mesh.send(dst, total)
        return total
    mesh.send(0, tensor)
    return mesh.recv(0)
