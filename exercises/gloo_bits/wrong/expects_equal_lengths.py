"""Leaves `like` out: what comes must then be as long as what goes, and the last chunks are not."""

import torch

CHECK = "runs"
SAYS = "or pass `like`"


def cuts(flat, n):
    length = 2 * -(-flat.numel() // (2 * n))
    return [flat[c * length : (c + 1) * length] for c in range(n)]


def gloo_bits(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    flat = tensor.reshape(-1).clone()
    chunks = cuts(flat, n)
    left, right = (rank - 1) % n, (rank + 1) % n
    for step in range(n - 1):
        incoming = chunks[(rank + 1 + step + 1) % n]
        incoming += mesh.sendrecv(left, chunks[(rank + 1 + step) % n], right)
    for step in range(n - 1):
        incoming = chunks[(rank + 1 + step) % n]
        outgoing = chunks[(rank + 1 + step - +1) % n]
        incoming.copy_(mesh.sendrecv(left, outgoing, right))
    return flat.reshape(tensor.shape)
