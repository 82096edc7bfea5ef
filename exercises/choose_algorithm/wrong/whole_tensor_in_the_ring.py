"""Counts whole tensors in the ring."""

import math

CHECK = "choices"
SAYS = "a step carries one chunk"


def choose(nbytes: int, world_size: int, alpha: float, beta: float) -> str:
    ring = 2 * (world_size - 1) * (alpha + nbytes * beta)
    tree = 2 * math.ceil(math.log2(world_size)) * (alpha + nbytes * beta)
    return "tree" if tree < ring else "ring"
