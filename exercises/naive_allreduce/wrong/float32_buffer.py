"""Sums in a float32 buffer, whatever the dtype of the tensor is."""

import torch

CHECK = "result"
SAYS = "A buffer was made without dtype=tensor.dtype"


def naive_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    if mesh.rank == 0:
        total = torch.zeros(tensor.shape)
        total += tensor
        for src in range(1, mesh.world_size):
            total += mesh.recv(src)
        for dst in range(1, mesh.world_size):
            mesh.send(dst, total)
        return total
    mesh.send(0, tensor)
    return mesh.recv(0)
