"""Lays the gradients into the bucket as they come."""

import torch

CHECK = "averages"
SAYS = "not that of its arrival"


def reduce_in_buckets(module: torch.nn.Module, comm, buckets: list) -> None:
    place = {p: i for i, bucket in enumerate(buckets) for p in bucket}
    missing = [len(bucket) for bucket in buckets]
    sent = 0
    came = []

    def send(bucket):
        bucket = [p for p in came if any(p is q for q in bucket)]
        flat = torch.cat([p.grad.reshape(-1) for p in bucket]) / comm.world_size
        comm.all_reduce(flat)
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad.copy_(part.view(p.shape))

    def ready(parameter):
        nonlocal sent
        came.append(parameter)
        missing[place[parameter]] -= 1
        while sent < len(buckets) and missing[sent] == 0:
            send(buckets[sent])
            sent += 1
        if sent == len(buckets):  # the next backward begins anew
            missing[:] = [len(bucket) for bucket in buckets]
            sent = 0
            came.clear()

    for parameter in place:
        parameter.register_post_accumulate_grad_hook(ready)
