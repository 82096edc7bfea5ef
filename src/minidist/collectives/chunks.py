"""Cutting a tensor into world_size equal chunks, and putting it together again."""

from __future__ import annotations

import torch
from torch import Tensor


def split(tensor: Tensor, world_size: int) -> Tensor:
    """A copy of `tensor` as a matrix of `world_size` rows, padded with zeros at the end.

    Row k is chunk k, ceil(numel / world_size) elements. Any shape and strides, also 0-dim and
    empty. The zeros cost at most world_size - 1 elements and never reach the caller.
    """
    flat = tensor.detach().reshape(-1)
    chunk = -(-flat.numel() // world_size)
    padded = torch.zeros(world_size * chunk, dtype=tensor.dtype, device=tensor.device)
    padded[: flat.numel()] = flat
    return padded.view(world_size, chunk)


def join(chunks: Tensor, like: Tensor) -> Tensor:
    """Undo `split`: drop the padding, give back the shape of `like`."""
    return chunks.reshape(-1)[: like.numel()].reshape(like.shape)
