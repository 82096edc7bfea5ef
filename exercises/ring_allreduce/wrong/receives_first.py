"""recv, then send, on every rank: nobody ever sends, the whole ring waits."""

import torch

CHECK = "terminates"
SAYS = "do both at once with sendrecv"


def ring_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    size = -(-tensor.numel() // n)
    padded = torch.zeros(n * size, dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.reshape(-1)
    chunks = padded.view(n, size)
    for step in range(n - 1):
        chunks[(rank - step - 1) % n] += mesh.recv((rank - 1) % n)
        mesh.send((rank + 1) % n, chunks[(rank - step) % n])
    for step in range(n - 1):
        chunks[(rank - step) % n] = mesh.recv((rank - 1) % n)
        mesh.send((rank + 1) % n, chunks[(rank + 1 - step) % n])
    return padded[: tensor.numel()].reshape(tensor.shape)
