"""The sum goes from rank to rank along a line to rank 0, and back: 2(N - 1) steps."""

import torch

CHECK = "steps"
SAYS = "along a line"


def tree_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    total = tensor.clone()
    if rank + 1 < n:
        total += mesh.recv(rank + 1)
    if rank:
        mesh.send(rank - 1, total)
        total = mesh.recv(rank - 1)
    if rank + 1 < n:
        mesh.send(rank + 1, total)
    return total
