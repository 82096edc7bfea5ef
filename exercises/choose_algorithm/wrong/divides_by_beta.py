"""Takes beta for bytes per second."""

import math

CHECK = "choices"
SAYS = "it is seconds per byte"


def choose(nbytes: int, world_size: int, alpha: float, beta: float) -> str:
    ring = 2 * (world_size - 1) * (alpha + nbytes / world_size / beta)
    tree = 2 * math.ceil(math.log2(world_size)) * (alpha + nbytes / beta)
    return "tree" if tree < ring else "ring"
