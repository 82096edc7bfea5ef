"""Averages the new gradient before it is added to what .grad holds."""

import torch

CHECK = "averages"
SAYS = "which register_hook does not get to see"


def average_gradients(module: torch.nn.Module, comm) -> None:

    def average(grad):
        grad = grad / comm.world_size
        comm.all_reduce(grad)
        return grad

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(average)
