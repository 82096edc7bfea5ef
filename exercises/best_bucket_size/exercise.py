"""Exercise: how long a step takes with a bucket cap, and which cap is the best."""


def step_seconds(
    layers: list[tuple[float, int]], world_size: int, alpha: float, beta: float, cap: int
) -> float:
    """Seconds from the start of the backward pass until the last bucket is reduced.

    Gradients come in the order of `layers`. A bucket is closed and launched as soon as it holds
    `cap` bytes or more, and with the last gradient. Buckets are reduced one after the other, each
    by a ring allreduce: 2(N - 1) messages of nbytes / N each, alpha + n * beta seconds for one of n
    bytes. All of this goes on while the backward pass computes.

    layers: (seconds of its backward, bytes of its gradient), at least one. world_size: N, 1 or
    more. alpha: seconds per message. beta: seconds per byte. cap: bytes.
    """
    raise NotImplementedError


def best_cap(layers: list[tuple[float, int]], world_size: int, alpha: float, beta: float) -> int:
    """A cap, in bytes, with which step_seconds is as short as with any cap.

    layers: up to 30, otherwise as above. If several caps are best, any of them.
    """
    raise NotImplementedError
