"""Exercise: which gradients share a bucket."""

from collections import defaultdict

import torch


def bucket_assignment(
    tensors: list[torch.Tensor], limits: list[int], sparse: list[bool]
) -> tuple[list[list[int]], list[int]]:
    """Which tensors share a bucket, and the limit that each bucket was filled under.

    Tensors of one dtype on one device share buckets. Each is added to the open one, which is closed
    as soon as it holds its limit in bytes, or more. Such a kind goes through `limits` by itself:
    the first limit for its first bucket, and so on; the last stays. A tensor whose gradient is
    sparse makes a bucket of its own, with limit 0, and changes nothing else.

    tensors: at least one, maybe empty; their values do not matter.
    Returns lists of indices into `tensors`, sorted by the first of each, and as many limits.
    Price: looks at each tensor once.
    """
    done = []  # (indices, limit)
    indices = defaultdict(list)  # those of the open bucket
    nbytes = defaultdict(int)
    closed = defaultdict(int)  # how many buckets of this kind

    def limit_of(kind):
        return limits[min(closed[kind], len(limits) - 1)]

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
