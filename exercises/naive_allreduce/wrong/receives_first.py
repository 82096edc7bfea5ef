"""Every rank waits for the sum before it has sent its own part: nobody ever sends."""

import torch

CHECK = "terminates"
SAYS = "Every rank receives before anyone has sent"


def naive_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    if mesh.rank == 0:
        total = tensor.clone()
        for src in range(1, mesh.world_size):
            total += mesh.recv(src)
        for dst in range(1, mesh.world_size):
            mesh.send(dst, total)
        return total
    total = mesh.recv(0)
    mesh.send(0, tensor)
    return total
