"""The naive allreduce through rank 0, of which each rank keeps its part."""

import torch

CHECK = "messages"
SAYS = "this is the naive way"


def ring_reduce_scatter(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    if tensor.dim() == 0 or tensor.shape[0] % n:
        raise ValueError("cannot be cut into equal parts")
    total = tensor.clone()
    if rank == 0:
        for src in range(1, n):
            total += mesh.recv(src)
        for dst in range(1, n):
            mesh.send(dst, total)
    else:
        mesh.send(0, tensor)
        total = mesh.recv(0)
    part = tensor.shape[0] // n
    return total[rank * part : (rank + 1) * part].clone()
