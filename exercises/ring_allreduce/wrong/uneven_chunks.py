"""chunk(N) gives a smaller last chunk, or fewer than N chunks: the ranks disagree on sizes."""

import torch

CHECK = "runs"
SAYS = "Pad so that all chunks have one size"


def ring_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    flat = tensor.reshape(-1).clone()
    chunks = list(flat.tensor_split(n))
    for step in range(n - 1):
        came = mesh.sendrecv((rank + 1) % n, chunks[(rank - step) % n], (rank - 1) % n)
        chunks[(rank - step - 1) % n] += came
    for step in range(n - 1):
        came = mesh.sendrecv((rank + 1) % n, chunks[(rank + 1 - step) % n], (rank - 1) % n)
        chunks[(rank - step) % n].copy_(came)
    return flat.reshape(tensor.shape)
