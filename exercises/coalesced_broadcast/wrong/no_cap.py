"""Flattens all of a dtype, however large."""

from collections import defaultdict

import torch

CHECK = "messages"
SAYS = "bounds the memory"


def send(tensors: list[torch.Tensor], src: int, comm) -> None:
    """One broadcast for tensors of one dtype."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    comm.broadcast(flat, src)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view(tensor.shape))


def coalesced_broadcast(tensors: list[torch.Tensor], cap: int, src: int, comm) -> None:
    waiting = defaultdict(list)
    for tensor in tensors:
        tensor = tensor.detach()  # the same memory; autograd does not look on
        group = waiting[tensor.dtype]
        group.append(tensor)
    for rest in waiting.values():
        send(rest, src, comm)
