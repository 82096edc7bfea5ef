"""The hook is taken off after its first call."""

import torch

CHECK = "averages"
SAYS = "a hook has its work in every backward"


def average_gradients(module: torch.nn.Module, comm) -> None:

    handles = {}

    def average(parameter):
        parameter.grad /= comm.world_size
        comm.all_reduce(parameter.grad)
        handles[parameter].remove()

    for parameter in module.parameters():
        if parameter.requires_grad:
            handles[parameter] = parameter.register_post_accumulate_grad_hook(average)
