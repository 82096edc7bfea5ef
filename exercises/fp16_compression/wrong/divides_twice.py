"""Divides before the sum and after it."""

import torch

CHECK = "averages"
SAYS = "divided twice"


def fp16_average(flat: torch.Tensor, comm) -> None:
    small = flat.to(torch.float16) / comm.world_size
    comm.all_reduce(small)
    flat.copy_(small / comm.world_size)
