"""Counts the tree's way up only."""

import math

CHECK = "choices"
SAYS = "the tree's way down"


def choose(nbytes: int, world_size: int, alpha: float, beta: float) -> str:
    ring = 2 * (world_size - 1) * (alpha + nbytes / world_size * beta)
    tree = math.ceil(math.log2(world_size)) * (alpha + nbytes * beta)
    return "tree" if tree < ring else "ring"
