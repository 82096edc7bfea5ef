"""64 KB, as somebody has read somewhere: forgets N, alpha and beta."""

import math

CHECK = "choices"
SAYS = "The answer depends on the size alone"


def choose(nbytes: int, world_size: int, alpha: float, beta: float) -> str:
    return "tree" if nbytes < 65536 else "ring"
