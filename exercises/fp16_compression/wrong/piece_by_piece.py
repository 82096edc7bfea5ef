"""Sends four pieces where one would do."""

import torch

CHECK = "wire"
SAYS = "in 4"


def fp16_average(flat: torch.Tensor, comm) -> None:
    small = flat.to(torch.float16) / comm.world_size
    for piece in small.tensor_split(4):
        comm.all_reduce(piece)
    flat.copy_(small)
