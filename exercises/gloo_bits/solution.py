"""Exercise: a ring whose sums have gloo's bits."""

import torch


def gloo_bits(mesh, tensor: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' tensors, bit for bit what gloo's all_reduce gives.

    Floating-point addition rounds, so the order in which N numbers are added is in the result.
    gloo's ring turns left (rank r sends to r - 1), and its chunk c starts at rank c - 1, so that it
    is complete on rank c. A chunk is two segments of ceil(numel / (2 N)) elements each; nothing is
    padded, so the last chunks may be shorter, or empty. (Beyond 2 N MiB gloo cuts more segments:
    not asked here.)

    mesh: mesh.rank, mesh.world_size, mesh.sendrecv(dst, tensor, src, like) -> tensor, where `like`
    has the shape of what comes.
    tensor: any shape (also 0-dim and empty), any number of elements, any dtype, strided or not, the
    same on every rank. It is left alone.
    Returns a new tensor of the same shape and dtype.
    Price: 2(N - 1) steps; each rank sends every chunk but one in each of two passes.
    """
    rank, world_size = mesh.rank, mesh.world_size
    flat = tensor.reshape(-1).clone()
    length = 2 * -(-flat.numel() // (2 * world_size))  # two segments, each rounded up
    chunks = [flat[c * length : (c + 1) * length] for c in range(world_size)]
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    for step in range(world_size - 1):  # chunk c starts at rank c - 1 and goes to the left
        outgoing = chunks[(rank + step + 1) % world_size]
        incoming = chunks[(rank + step + 2) % world_size]
        incoming += mesh.sendrecv(left, outgoing, right, like=incoming)
    for step in range(world_size - 1):  # chunk r is complete on rank r
        outgoing = chunks[(rank + step) % world_size]
        incoming = chunks[(rank + step + 1) % world_size]
        incoming.copy_(mesh.sendrecv(left, outgoing, right, like=incoming))
    return flat.reshape(tensor.shape)
