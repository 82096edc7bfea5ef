"""Lets torch.distributed do the work."""

import torch
import torch.distributed as dist

CHECK = "no_distributed"
SAYS = "Calling torch.distributed is refused"


def naive_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    dist.all_reduce(total)
    return total
