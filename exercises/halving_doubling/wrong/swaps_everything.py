"""Swaps whole tensors and adds: half as many rounds, but all bytes in each."""

import torch

CHECK = "messages"
SAYS = "first halve what is swapped"


def halving_doubling(mesh, tensor: torch.Tensor) -> torch.Tensor:
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
