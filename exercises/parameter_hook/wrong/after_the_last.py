"""Waits for the last gradient, then averages them all."""

import torch

CHECK = "ready"
SAYS = "nothing left to hide the communication behind"


def average_gradients(module: torch.nn.Module, comm) -> None:
    trainable = [p for p in module.parameters() if p.requires_grad]
    there = []

    def average(parameter):
        there.append(parameter)
        if len(there) < len(trainable):
            return
        for one in there:
            one.grad /= comm.world_size
            comm.all_reduce(one.grad)
        there.clear()

    for parameter in trainable:
        parameter.register_post_accumulate_grad_hook(average)
