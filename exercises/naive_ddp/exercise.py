"""Exercise: data parallelism without hooks and buckets."""

import torch


def share_parameters(module: torch.nn.Module, comm) -> None:
    """Give every rank's module the parameters of rank 0, in place; also those that are frozen.

    comm: comm.rank, comm.world_size, comm.broadcast(tensor, src), which gives every rank the values
    of rank src, in place.
    Price: one broadcast for each parameter, of its bytes.
    """
    raise NotImplementedError


def average_gradients(module: torch.nn.Module, comm) -> None:
    """Replace every parameter's gradient by its average over ranks, in place.

    It is called after backward. What has no gradient (it is frozen, or no rank has used it) stays
    without. Every rank has gradients for the same parameters.

    comm: also comm.all_reduce(tensor), which sums in place over all ranks.
    Price: one all_reduce for each gradient, of its bytes.
    """
    raise NotImplementedError
