"""Works in a float32 buffer and converts back at the end: large whole numbers lose digits."""

import torch

CHECK = "values"
SAYS = "a buffer of dtype float32"


def ring_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    size = -(-tensor.numel() // n)
    padded = torch.zeros(n * size)
    padded[: tensor.numel()] = tensor.reshape(-1)
    chunks = padded.view(n, size)
    for step in range(n - 1):
        came = mesh.sendrecv((rank + 1) % n, chunks[(rank - step) % n], (rank - 1) % n)
        chunks[(rank - step - 1) % n] += came
    for step in range(n - 1):
        came = mesh.sendrecv((rank + 1) % n, chunks[(rank + 1 - step) % n], (rank - 1) % n)
        chunks[(rank - step) % n] = came
    return padded[: tensor.numel()].reshape(tensor.shape).to(tensor.dtype)
