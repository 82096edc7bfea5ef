"""Pays alpha once per bucket."""

CHECK = "seconds"
SAYS = "every message pays alpha"


def step_seconds(
    layers: list[tuple[float, int]], world_size: int, alpha: float, beta: float, cap: int
) -> float:
    now = free = 0.0
    nbytes = 0
    for number, (seconds, size) in enumerate(layers, 1):
        now += seconds
        nbytes += size
        if nbytes >= cap or number == len(layers):
            allreduce = alpha + 2 * (world_size - 1) * nbytes / world_size * beta
            free = max(free, now) + allreduce
            nbytes = 0
    return free


def best_cap(layers: list[tuple[float, int]], world_size: int, alpha: float, beta: float) -> int:
    sizes = [size for _, size in layers]
    runs = {sum(sizes[i:j]) for i in range(len(sizes)) for j in range(i + 1, len(sizes) + 1)}
    return min(runs, key=lambda cap: step_seconds(layers, world_size, alpha, beta, cap))
