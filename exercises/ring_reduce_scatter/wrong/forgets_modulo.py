"""The right neighbour of the last rank would be rank N, which does not exist."""

import torch

CHECK = "runs"
SAYS = "the last rank's right neighbour is rank 0"


def ring_reduce_scatter(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    if tensor.dim() == 0 or tensor.shape[0] % n:
        raise ValueError("cannot be cut into equal parts")
    chunks = tensor.reshape(n, tensor.shape[0] // n, *tensor.shape[1:]).clone()
    for step in range(n - 1):
        outgoing = chunks[(rank - step - 1) % n]
        chunks[(rank - step - 2) % n] += mesh.sendrecv(rank + 1, outgoing, rank - 1)
    return chunks[rank].clone()
