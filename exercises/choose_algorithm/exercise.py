"""Exercise: ring or tree? Choose by size, world size and the wire."""

import math


def choose(nbytes: int, world_size: int, alpha: float, beta: float) -> str:
    """The faster of two allreduces: "ring" or "tree".

    A message of n bytes takes alpha + n * beta seconds. The ring takes 2(N - 1) steps of one chunk,
    nbytes / N. The tree takes 2 ceil(log2 N) steps of the whole tensor.

    nbytes: bytes of the tensor (not padded; divide by N as it is). world_size: N, 1 or more.
    alpha: seconds per message. beta: seconds per byte.
    Returns "ring" or "tree", whichever takes less time; where both take the same, either.
    """
    raise NotImplementedError
