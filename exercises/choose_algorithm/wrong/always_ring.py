"""The ring has the fewest bytes, so always the ring."""

import math

CHECK = "choices"
SAYS = "the same answer to every question"


def choose(nbytes: int, world_size: int, alpha: float, beta: float) -> str:
    return "ring"
