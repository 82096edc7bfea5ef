"""Passes milliseconds to a wait in seconds."""

CHECK = "deadline"
SAYS = "wait() and now() are in seconds"


def receive(line, deadline_ms: float, rank: int, peer: int, step: int) -> bytes:
    until = line.now() + deadline_ms
    while line.wait(until - line.now()):
        piece, last = line.take()
        line.kept.append(piece)
        if last:
            message = b"".join(line.kept)
            line.kept.clear()
            return message
    raise TimeoutError(f"rank {rank} waited {deadline_ms} ms for rank {peer} at step {step}")
