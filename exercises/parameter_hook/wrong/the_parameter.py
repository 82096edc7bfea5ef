"""Averages the parameter, as if the hook got a gradient."""

import torch

CHECK = "averages"
SAYS = "called with the parameter, not with its gradient"


def average_gradients(module: torch.nn.Module, comm) -> None:

    def average(parameter):
        parameter.data /= comm.world_size
        comm.all_reduce(parameter.data)

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)
