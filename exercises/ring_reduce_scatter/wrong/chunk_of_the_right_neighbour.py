"""Uses the schedule of allreduce as it is: rank r ends up with chunk r + 1."""

import torch

CHECK = "values"
SAYS = "Each rank returned a finished chunk, but rank r the one of rank (r + 1) mod N"


def ring_reduce_scatter(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    if tensor.dim() == 0 or tensor.shape[0] % n:
        raise ValueError("cannot be cut into equal parts")
    chunks = tensor.reshape(n, tensor.shape[0] // n, *tensor.shape[1:]).clone()
    for step in range(n - 1):
        outgoing = chunks[(rank - step) % n]
        chunks[(rank - step - 1) % n] += mesh.sendrecv((rank + 1) % n, outgoing, (rank - 1) % n)
    return chunks[(rank + 1) % n].clone()
