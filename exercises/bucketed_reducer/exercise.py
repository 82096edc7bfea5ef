"""Exercise: gradients in buckets, which are sent in one order on every rank."""

import torch


def reduce_in_buckets(module: torch.nn.Module, comm, buckets: list) -> None:
    """From now on every backward leaves in .grad the average over ranks, sent bucket by bucket.

    A bucket goes as soon as all its gradients are there and the buckets before it have gone, so
    every rank sends them in the order of the list, in whatever order its own gradients come.
    Returns nothing; called once, before the first backward.

    module: the same parameters on every rank, all float64; each backward brings every gradient.
    comm: comm.rank, comm.world_size, comm.all_reduce(tensor), which sums in place over all ranks.
    buckets: lists of parameters; each of the module's is in one of them.
    Price: one all_reduce for each bucket, of the gradients in it.
    """
    raise NotImplementedError
