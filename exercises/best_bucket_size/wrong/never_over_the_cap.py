"""Closes a bucket before it would hold more than the cap."""

CHECK = "seconds"
SAYS = "cap bytes or more"


def step_seconds(
    layers: list[tuple[float, int]], world_size: int, alpha: float, beta: float, cap: int
) -> float:
    now = free = 0.0
    nbytes = 0
    for seconds, size in layers:
        if nbytes and nbytes + size > cap:
            allreduce = 2 * (world_size - 1) * (alpha + nbytes / world_size * beta)
            free, nbytes = max(free, now) + allreduce, 0
        now += seconds
        nbytes += size
    allreduce = 2 * (world_size - 1) * (alpha + nbytes / world_size * beta)
    return max(free, now) + allreduce


def best_cap(layers: list[tuple[float, int]], world_size: int, alpha: float, beta: float) -> int:
    sizes = [size for _, size in layers]
    runs = {sum(sizes[i:j]) for i in range(len(sizes)) for j in range(i + 1, len(sizes) + 1)}
    return min(runs, key=lambda cap: step_seconds(layers, world_size, alpha, beta, cap))
