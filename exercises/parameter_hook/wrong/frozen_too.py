"""Hooks on frozen parameters too, which cannot have one."""

import torch

CHECK = "runs"
SAYS = "require"


def average_gradients(module: torch.nn.Module, comm) -> None:

    def average(parameter):
        parameter.grad /= comm.world_size
        comm.all_reduce(parameter.grad)

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(average)
