"""The naive allreduce through rank 0: right sums, but no ring."""

import torch

CHECK = "messages"
SAYS = "this is the naive way"


def ring_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    if mesh.rank == 0:
        for src in range(1, mesh.world_size):
            total += mesh.recv(src)
        for dst in range(1, mesh.world_size):
            mesh.send(dst, total)
        return total
    mesh.send(0, tensor)
    return mesh.recv(0)
