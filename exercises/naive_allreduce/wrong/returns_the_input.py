"""With one rank there is nothing to add, so it hands back the input itself instead of a copy."""

import torch

CHECK = "input"
SAYS = "the world size is 1"


def naive_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    if mesh.world_size == 1:
        return tensor
    if mesh.rank == 0:
        total = tensor.clone()
        for src in range(1, mesh.world_size):
            total += mesh.recv(src)
        for dst in range(1, mesh.world_size):
            mesh.send(dst, total)
        return total
    mesh.send(0, tensor)
    return mesh.recv(0)
