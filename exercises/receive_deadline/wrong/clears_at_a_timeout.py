"""Starts afresh after a timeout, and throws away what had come."""

CHECK = "whole"
SAYS = "Put the pieces into line.kept"


def receive(line, deadline_ms: float, rank: int, peer: int, step: int) -> bytes:
    until = line.now() + deadline_ms / 1000
    while line.wait(until - line.now()):
        piece, last = line.take()
        line.kept.append(piece)
        if last:
            message = b"".join(line.kept)
            line.kept.clear()
            return message
    line.kept.clear()
    raise TimeoutError(f"rank {rank} waited {deadline_ms} ms for rank {peer} at step {step}")
