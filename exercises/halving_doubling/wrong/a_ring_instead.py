"""The ring allreduce: as few bytes, but 2(N - 1) steps and other partners."""

import torch

CHECK = "messages"
SAYS = "messages"


def halving_doubling(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    size = -(-tensor.numel() // n)
    padded = torch.zeros(n * size, dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.reshape(-1)
    chunks = padded.view(n, size)
    for step in range(n - 1):
        came = mesh.sendrecv((rank + 1) % n, chunks[(rank - step) % n], (rank - 1) % n)
        chunks[(rank - step - 1) % n] += came
    for step in range(n - 1):
        came = mesh.sendrecv((rank + 1) % n, chunks[(rank + 1 - step) % n], (rank - 1) % n)
        chunks[(rank - step) % n] = came
    return padded[: tensor.numel()].reshape(tensor.shape)
