"""Exercise: data parallelism that can skip the communication."""

import contextlib

import torch


def data_parallel(module: torch.nn.Module, comm) -> torch.nn.Module:
    """The module with gradients that are averaged over ranks in backward, except under no_sync().

    Returns a replica: replica(*inputs) is module(*inputs), and replica.no_sync() a context manager.
    After the backward of a forward outside no_sync(), the .grad of every parameter is the average
    over ranks of all that was accumulated; after one inside, it is this rank's own sum. What counts
    is where the forward ran, not where the backward did.

    module: the same parameters on every rank; some may be frozen, shared, or used twice.
    comm: comm.rank, comm.world_size, comm.all_reduce(tensor), which sums in place over all ranks.
    Price: a synchronised backward sends each gradient once; one under no_sync() sends nothing.
    """
    raise NotImplementedError
