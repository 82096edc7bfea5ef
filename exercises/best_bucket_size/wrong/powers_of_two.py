"""Tries powers of two."""

CHECK = "best"
SAYS = "Where the best cap lies"


def step_seconds(
    layers: list[tuple[float, int]], world_size: int, alpha: float, beta: float, cap: int
) -> float:
    now = free = 0.0
    nbytes = 0
    for number, (seconds, size) in enumerate(layers, 1):
        now += seconds
        nbytes += size
        if nbytes >= cap or number == len(layers):
            allreduce = 2 * (world_size - 1) * (alpha + nbytes / world_size * beta)
            free = max(free, now) + allreduce
            nbytes = 0
    return free


def best_cap(layers: list[tuple[float, int]], world_size: int, alpha: float, beta: float) -> int:
    caps = [2**k for k in range(30)]
    return min(caps, key=lambda cap: step_seconds(layers, world_size, alpha, beta, cap))
