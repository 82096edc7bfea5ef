"""Each rank hands the tensor to its right neighbour: N - 1 steps, one after the other."""

import torch

CHECK = "steps"
SAYS = "The tensor goes from rank to rank along a line"


def broadcast(mesh, tensor: torch.Tensor, src: int) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    result = tensor.clone() if rank == src else mesh.recv((rank - 1) % n)
    if (rank + 1) % n != src:
        mesh.send((rank + 1) % n, result)
    return result
