"""Exercise: data parallelism when a batch does not use every parameter."""

import torch


def data_parallel(module: torch.nn.Module, comm) -> torch.nn.Module:
    """The module with gradients that are averaged, also where a batch leaves parameters out.

    Returns a replica: replica(*inputs) is module(*inputs). Which parameters that uses may differ
    from rank to rank and from step to step. After the backward, the .grad of a parameter that at
    least one rank has used is the average over all ranks, on every rank; a rank that has not used
    it counts with its .grad as it is, or zeros where that is None. The .grad of a parameter that no
    rank has used is left alone.

    module: the same parameters on every rank, all float64 but for frozen ones; its forward returns
    a tensor or a tuple of tensors, which all go into the loss. On every rank at least one parameter
    is used.
    comm: comm.rank, comm.world_size, comm.all_reduce(tensor), which sums in place over all ranks.
    Price: two collectives: all gradients, and at most 8 bytes per parameter.
    """
    raise NotImplementedError
