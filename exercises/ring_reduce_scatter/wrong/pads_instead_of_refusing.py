"""Pads with zeros where the contract asks for ValueError: the last rank's part is partly padding."""

import torch

CHECK = "refuses"
SAYS = "must be refused with ValueError"


def ring_reduce_scatter(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    rows = tensor if tensor.dim() else tensor.reshape(1)
    part = -(-rows.shape[0] // n)
    padded = torch.zeros(n * part, *rows.shape[1:], dtype=tensor.dtype)
    padded[: rows.shape[0]] = rows
    chunks = padded.reshape(n, part, *rows.shape[1:])
    for step in range(n - 1):
        outgoing = chunks[(rank - step - 1) % n]
        chunks[(rank - step - 2) % n] += mesh.sendrecv((rank + 1) % n, outgoing, (rank - 1) % n)
    return chunks[rank].clone()
