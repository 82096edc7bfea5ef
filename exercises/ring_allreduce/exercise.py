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
    raise NotImplementedError
