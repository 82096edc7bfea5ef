"""Averages a copy and forgets it."""

import torch

CHECK = "averages"
SAYS = "never came back into flat"


def fp16_average(flat: torch.Tensor, comm) -> None:
    small = flat.to(torch.float16) / comm.world_size
    comm.all_reduce(small)
