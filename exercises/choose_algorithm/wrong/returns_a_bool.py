"""Returns whether the tree is faster."""

import math

CHECK = "names"
SAYS = "neither of the two names"


def choose(nbytes: int, world_size: int, alpha: float, beta: float) -> str:
    ring = 2 * (world_size - 1) * (alpha + nbytes / world_size * beta)
    tree = 2 * math.ceil(math.log2(world_size)) * (alpha + nbytes * beta)
    return tree < ring
