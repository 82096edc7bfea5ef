"""Does not copy the average back."""

import torch

CHECK = "averages"
SAYS = "come back from there"


def reduce_in_buckets(module: torch.nn.Module, comm, buckets: list) -> None:
    place = {p: i for i, bucket in enumerate(buckets) for p in bucket}
    missing = [len(bucket) for bucket in buckets]
    sent = 0

    def send(bucket):
        flat = torch.cat([p.grad.reshape(-1) for p in bucket]) / comm.world_size
        comm.all_reduce(flat)

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
