"""Hands whole tensors around the ring, adds them all up, and cuts out its part at the end."""

import torch

CHECK = "bytes"
SAYS = "Each step sends the whole tensor"


def ring_reduce_scatter(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    if tensor.dim() == 0 or tensor.shape[0] % n:
        raise ValueError("cannot be cut into equal parts")
    total, travelling = tensor.clone(), tensor
    for _ in range(n - 1):
        travelling = mesh.sendrecv((rank + 1) % n, travelling, (rank - 1) % n)
        total += travelling
    part = tensor.shape[0] // n
    return total[rank * part : (rank + 1) * part].clone()
