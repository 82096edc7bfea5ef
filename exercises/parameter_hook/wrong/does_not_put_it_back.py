"""Averages a copy of the gradient and lets it go."""

import torch

CHECK = "averages"
SAYS = "Does the average get into .grad?"


def average_gradients(module: torch.nn.Module, comm) -> None:

    def average(parameter):
        grad = parameter.grad / comm.world_size
        comm.all_reduce(grad)

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)
