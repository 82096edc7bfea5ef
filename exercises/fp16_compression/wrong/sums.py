"""Does not divide."""

import torch

CHECK = "averages"
SAYS = "It is the sum"


def fp16_average(flat: torch.Tensor, comm) -> None:
    small = flat.to(torch.float16)
    comm.all_reduce(small)
    flat.copy_(small)
