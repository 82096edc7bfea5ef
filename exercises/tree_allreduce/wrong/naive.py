"""Everything through rank 0: a tree without branches."""

import torch

CHECK = "bytes"
SAYS = "The root sends to everyone itself"


def tree_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    if mesh.rank == 0:
        for src in range(1, mesh.world_size):
            total += mesh.recv(src)
        for dst in range(1, mesh.world_size):
            mesh.send(dst, total)
        return total
    mesh.send(0, tensor)
    return mesh.recv(0)
