"""Exercise: broadcast, a doubling tree from any root."""

import torch


def broadcast(mesh, tensor: torch.Tensor, src: int) -> torch.Tensor:
    """Rank src's tensor, on every rank.

    The number of ranks that have the tensor doubles with each step: whoever has it sends it to one
    that does not. It helps to count ranks from the root, (rank - src) mod N, so that the root is 0.

    mesh: mesh.rank, mesh.world_size, mesh.send(dst, tensor), mesh.recv(src) -> tensor.
    tensor: on rank src what is sent; on the others only an example of its shape and dtype. Any
    shape and dtype, strided or not. It is left alone.
    src: the root, any rank.
    Returns a new tensor of the same shape and dtype, also on rank src.
    Price: ceil(log2 N) steps for any N, and every rank but src receives exactly once.
    """
    raise NotImplementedError
