"""Only the rank that has the values calls the broadcast."""

from collections import defaultdict

import torch

CHECK = "agree"
SAYS = "A rank has come to the end without talking"


class Replica(torch.nn.Module):

    def __init__(self, module, comm):
        super().__init__()
        self.module, self.comm = module, comm

    def forward(self, *inputs):
        by_dtype = defaultdict(list)
        for buffer in self.module.buffers():  # those of this moment
            by_dtype[buffer.dtype].append(buffer.data)
        for buffers in by_dtype.values():
            flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
            if self.comm.rank == 0:
                self.comm.broadcast(flat, 0)
            parts = flat.split([buffer.numel() for buffer in buffers])
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.copy_(part.view(buffer.shape))
        return self.module(*inputs)


def share_buffers(module: torch.nn.Module, comm) -> torch.nn.Module:
    return Replica(module, comm)
