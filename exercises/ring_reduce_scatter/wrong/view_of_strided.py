"""view() works on contiguous tensors only."""

import torch

CHECK = "runs"
SAYS = "view() refuses a strided tensor"


def ring_reduce_scatter(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    if tensor.dim() == 0 or tensor.shape[0] % n:
        raise ValueError("cannot be cut into equal parts")
    chunks = tensor.view(-1).view(n, -1).clone() if tensor.numel() else tensor.new_zeros(n, 0)
    for step in range(n - 1):
        outgoing = chunks[(rank - step - 1) % n]
        chunks[(rank - step - 2) % n] += mesh.sendrecv((rank + 1) % n, outgoing, (rank - 1) % n)
    return chunks[rank].reshape(tensor.shape[0] // n, *tensor.shape[1:]).clone()
