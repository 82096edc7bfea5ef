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
    place = {p: i for i, bucket in enumerate(buckets) for p in bucket}
    missing = [len(bucket) for bucket in buckets]
    sent = 0

    def send(bucket):
        flat = torch.cat([p.grad.reshape(-1) for p in bucket]) / comm.world_size
        comm.all_reduce(flat)
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad.copy_(part.view(p.shape))

    def ready(parameter):
        nonlocal sent
        missing[place[parameter]] -= 1
        while sent < len(buckets) and missing[sent] == 0:
            send(buckets[sent])
            sent += 1
        if sent == len(buckets):  # the next backward begins anew
            missing[:] = [len(bucket) for bucket in buckets]
            sent = 0

    for parameter in place:
        parameter.register_post_accumulate_grad_hook(ready)
