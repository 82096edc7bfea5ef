"""Never goes on to the second limit."""

from collections import defaultdict

import torch

CHECK = "buckets"
SAYS = "the next limit holds"


def bucket_assignment(
    tensors: list[torch.Tensor], limits: list[int], sparse: list[bool]
) -> tuple[list[list[int]], list[int]]:
    done = []  # (indices, limit)
    indices = defaultdict(list)  # those of the open bucket
    nbytes = defaultdict(int)
    closed = defaultdict(int)  # how many buckets of this kind

    def limit_of(kind):
        return limits[0]

    for index, tensor in enumerate(tensors):
        if sparse[index]:
            done.append(([index], 0))
            continue
        kind = tensor.dtype, tensor.device
        indices[kind].append(index)
        nbytes[kind] += tensor.numel() * tensor.element_size()
        if nbytes[kind] >= limit_of(kind):
            done.append((indices.pop(kind), limit_of(kind)))
            closed[kind] += 1
            nbytes[kind] = 0
    done += [(rest, limit_of(kind)) for kind, rest in indices.items()]
    done.sort()
    return [bucket for bucket, _ in done], [limit for _, limit in done]
