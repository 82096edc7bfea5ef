"""Exercise: ring allreduce, two passes around the ring, any size."""

import torch


def ring_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' tensors, on every rank, without a special rank.

    The tensor is made flat, padded with zeros to a multiple of N, and cut into N chunks. First
    pass, N - 1 steps: rank r sends chunk (r - s) mod N to (r + 1) mod N and adds what arrives to
    chunk (r - s - 1) mod N; then chunk (r + 1) mod N is complete on rank r. Second pass, N - 1
    steps: complete chunks go around and replace what was there.

    mesh: mesh.rank, mesh.world_size, mesh.sendrecv(dst, tensor, src) -> tensor (also send, recv).
    tensor: any shape (also 0-dim and empty), any number of elements, any dtype, strided or not,
    the same on every rank. It is left alone.
    Returns a new tensor of the same shape and dtype, without the padding.
    Price: 2(N - 1) steps, and each rank sends 2(N - 1)/N of the padded tensor.
    """
    rank, world_size = mesh.rank, mesh.world_size
    numel = tensor.numel()
    per_chunk = -(-numel // world_size)  # division, rounded up
    padded = torch.zeros(world_size * per_chunk, dtype=tensor.dtype)
    padded[:numel] = tensor.reshape(-1)
    chunks = padded.view(world_size, per_chunk)  # row k is chunk k
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step) % world_size]
        chunks[(rank - step - 1) % world_size] += mesh.sendrecv(right, outgoing, left)
    for step in range(world_size - 1):  # the same, one chunk further on, and = instead of +=
        outgoing = chunks[(rank + 1 - step) % world_size]
        chunks[(rank - step) % world_size] = mesh.sendrecv(right, outgoing, left)
    return padded[:numel].reshape(tensor.shape)
