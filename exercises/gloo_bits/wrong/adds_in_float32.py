"""Adds 16-bit numbers in float32 and rounds once at the end: more exact than gloo."""

import torch

CHECK = "bytes"
SAYS = "sent too many bytes"


def cuts(flat, n):
    length = 2 * -(-flat.numel() // (2 * n))
    return [flat[c * length : (c + 1) * length] for c in range(n)]


def gloo_bits(mesh, tensor: torch.Tensor) -> torch.Tensor:
    keep = tensor.dtype
    if keep in (torch.float16, torch.bfloat16):
        tensor = tensor.float()

    rank, n = mesh.rank, mesh.world_size
    flat = tensor.reshape(-1).clone()
    chunks = cuts(flat, n)
    left, right = (rank - 1) % n, (rank + 1) % n
    for step in range(n - 1):
        incoming = chunks[(rank + 1 + step + 1) % n]
        incoming += mesh.sendrecv(left, chunks[(rank + 1 + step) % n], right, like=incoming)
    for step in range(n - 1):
        incoming = chunks[(rank + 1 + step) % n]
        outgoing = chunks[(rank + 1 + step - +1) % n]
        incoming.copy_(mesh.sendrecv(left, outgoing, right, like=incoming))
    return flat.reshape(tensor.shape).to(keep)
