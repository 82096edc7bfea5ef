"""Our ring: right sums, but it turns to the right."""

import torch

CHECK = "messages"
SAYS = "Your ring turns the other way"


def cuts(flat, n):
    length = 2 * -(-flat.numel() // (2 * n))
    return [flat[c * length : (c + 1) * length] for c in range(n)]


def gloo_bits(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    flat = tensor.reshape(-1).clone()
    chunks = cuts(flat, n)
    left, right = (rank + 1) % n, (rank - 1) % n
    for step in range(n - 1):
        incoming = chunks[(rank - 1 - step - 1) % n]
        incoming += mesh.sendrecv(left, chunks[(rank - 1 - step) % n], right, like=incoming)
    for step in range(n - 1):
        incoming = chunks[(rank - 1 - step) % n]
        outgoing = chunks[(rank - 1 - step - -1) % n]
        incoming.copy_(mesh.sendrecv(left, outgoing, right, like=incoming))
    return flat.reshape(tensor.shape)
