"""log2 N as it is: a tree has no 2.3 levels."""

import math

CHECK = "choices"
SAYS = "does not round log2 N up"


def choose(nbytes: int, world_size: int, alpha: float, beta: float) -> str:
    ring = 2 * (world_size - 1) * (alpha + nbytes / world_size * beta)
    tree = 2 * math.log2(world_size) * (alpha + nbytes * beta)
    return "tree" if tree < ring else "ring"
