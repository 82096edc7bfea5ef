"""Sends bfloat16: as short, and eight times as coarse."""

import torch

CHECK = "wire"
SAYS = "bfloat16"


def fp16_average(flat: torch.Tensor, comm) -> None:
    small = flat.to(torch.bfloat16) / comm.world_size
    comm.all_reduce(small)
    flat.copy_(small)
