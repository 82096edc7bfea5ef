"""An empty TimeoutError."""

CHECK = "error"
SAYS = "does not name rank 4 and peer 6 and step 17"


def receive(line, deadline_ms: float, rank: int, peer: int, step: int) -> bytes:
    until = line.now() + deadline_ms / 1000
    while line.wait(until - line.now()):
        piece, last = line.take()
        line.kept.append(piece)
        if last:
            message = b"".join(line.kept)
            line.kept.clear()
            return message
    raise TimeoutError
