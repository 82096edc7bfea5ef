"""Takes the logarithm of N - 1: fails for one rank."""

import math

CHECK = "runs"
SAYS = "ValueError"


def choose(nbytes: int, world_size: int, alpha: float, beta: float) -> str:
    ring = 2 * (world_size - 1) * (alpha + nbytes / world_size * beta)
    tree = 2 * (math.floor(math.log2(world_size - 1)) + 1) * (alpha + nbytes * beta)
    return "tree" if tree < ring else "ring"
