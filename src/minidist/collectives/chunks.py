"""Cutting a tensor into world_size equal chunks, and putting it together again."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor


def split(tensor: Tensor, world_size: int) -> Tensor:
    """A copy of `tensor` as a matrix of `world_size` rows, padded with zeros at the end.

    Row k is chunk k, ceil(numel / world_size) elements. Any shape and strides, also 0-dim and
    empty. The zeros cost at most world_size - 1 elements and never reach the caller.
    """
    flat = tensor.detach().reshape(-1)
    chunk = ceil(flat.numel() / world_size)
    padded = torch.zeros(world_size * chunk, dtype=tensor.dtype, device=tensor.device)
    padded[: flat.numel()] = flat
    return padded.view(world_size, chunk)


def join(chunks: Tensor, like: Tensor) -> Tensor:
    """Undo `split`: drop the padding, give back the shape of `like`."""
    return chunks.reshape(-1)[: like.numel()].reshape(like.shape)


GLOO_SEGMENT_BYTES = 1 << 20  # gloo cuts chunks into pieces of at most this size


def gloo_chunks(world_size: int, numel: int, itemsize: int) -> list[slice]:
    """Where gloo cuts: each chunk is as many segments as the others, two or more, up to 1 MiB."""
    nbytes = numel * itemsize
    segments = max(ceil(nbytes / GLOO_SEGMENT_BYTES), 2 * world_size)
    per_chunk = ceil(segments / world_size)
    segment = ceil(ceil(nbytes / (per_chunk * world_size)) / itemsize)  # in elements
    chunk = segment * per_chunk
    return [slice(c * chunk, (c + 1) * chunk) for c in range(world_size)]
