"""Exercise: gradients that are averaged one by one, by hooks."""

import torch


def average_gradients(module: torch.nn.Module, comm) -> None:
    """From now on every backward leaves in .grad the average over ranks of what it would hold.

    Each gradient is averaged on its own, in the backward, as soon as it is there. What .grad held
    before is part of the average. Returns nothing; called once, before the first backward.

    module: the same parameters on every rank; some may be frozen, or shared by two layers.
    comm: comm.rank, comm.world_size, comm.all_reduce(tensor), which sums in place over all ranks.
    Price: one all_reduce for each parameter that requires a gradient, of its gradient.
    """
    raise NotImplementedError
