"""allgather: every rank gives a tensor, every rank gets all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.collectives.ring import gather_pass_
from minidist.mesh import Mesh


def allgather(mesh: Mesh, tensor: Tensor) -> Tensor:
    """All ranks' tensors, stacked: shape (N, *tensor.shape), row r from rank r.

    tensor: any shape and strides, the same on every rank; the input is left alone.
    Steps: N - 1 around the ring. Bytes sent per rank: N - 1 times the tensor.
    Raises MessageMismatch if a rank's dtype or size differs.
    """
    rows = torch.zeros(mesh.world_size, tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    rows[mesh.rank] = tensor.detach().reshape(-1)
    gather_pass_(mesh, rows, first=mesh.rank)
    return rows.reshape(mesh.world_size, *tensor.shape)
