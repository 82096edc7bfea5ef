"""Only rank 0 asks for the sum."""

import torch

CHECK = "agree"
SAYS = "A rank has come to the end without talking"


def fp16_average(flat: torch.Tensor, comm) -> None:
    small = flat.to(torch.float16) / comm.world_size
    if comm.rank == 0:
        comm.all_reduce(small)
    flat.copy_(small)
