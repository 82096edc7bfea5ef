"""A broadcast for each buffer."""

from collections import defaultdict

import torch

CHECK = "collectives"
SAYS = "Flatten"


class Replica(torch.nn.Module):
    """A module that takes over rank 0's buffers before each forward."""

    def __init__(self, module, comm):
        super().__init__()
        self.module, self.comm = module, comm

    def forward(self, *inputs):
        by_dtype = defaultdict(list)
        for buffer in self.module.buffers():  # those of this moment
            by_dtype[buffer.dtype].append(buffer.data)
        for buffers in by_dtype.values():
            for buffer in buffers:
                self.comm.broadcast(buffer, 0)
        return self.module(*inputs)


def share_buffers(module: torch.nn.Module, comm) -> torch.nn.Module:
    return Replica(module, comm)
