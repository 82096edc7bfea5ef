"""Recursive doubling with a fold: right for any N, but N log2 N messages instead of 2(N - 1)."""

import torch

CHECK = "messages"
SAYS = "swapping with several partners"


def tree_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    power = 1 << (n.bit_length() - 1)
    total, distance = tensor.clone(), 1
    if rank >= power:
        mesh.send(rank - power, total)
        return mesh.recv(rank - power)
    if rank + power < n:
        total += mesh.recv(rank + power)
    while distance < power:
        total += mesh.sendrecv(rank ^ distance, total, rank ^ distance)
        distance *= 2
    if rank + power < n:
        mesh.send(rank + power, total)
    return total
