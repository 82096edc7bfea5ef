"""Rounds to float16, and sends float32."""

import torch

CHECK = "wire"
SAYS = "Rounding saves nothing"


def fp16_average(flat: torch.Tensor, comm) -> None:
    rounded = flat.to(torch.float16).float() / comm.world_size
    comm.all_reduce(rounded)
    flat.copy_(rounded)
