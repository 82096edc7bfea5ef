"""Divides after the sum, which is infinite by then."""

import torch

CHECK = "averages"
SAYS = "Divide before the sum"


def fp16_average(flat: torch.Tensor, comm) -> None:
    small = flat.to(torch.float16)
    comm.all_reduce(small)
    flat.copy_(small / comm.world_size)
