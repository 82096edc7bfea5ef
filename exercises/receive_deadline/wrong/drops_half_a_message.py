"""Keeps the pieces in a variable: at a timeout they are gone."""

CHECK = "whole"
SAYS = "Put the pieces into line.kept"


def receive(line, deadline_ms: float, rank: int, peer: int, step: int) -> bytes:
    until = line.now() + deadline_ms / 1000
    message = b""
    while line.wait(until - line.now()):
        piece, last = line.take()
        message += piece
        if last:
            return message
    raise TimeoutError(f"rank {rank} waited {deadline_ms} ms for rank {peer} at step {step}")
