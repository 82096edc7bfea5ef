"""A thread does the waiting; after the deadline it still waits, and takes the message."""

import threading

CHECK = "deadline"
SAYS = "not with time.sleep, a thread"


def receive(line, deadline_ms: float, rank: int, peer: int, step: int) -> bytes:
    got = []

    def wait_for_it():
        last = False
        while not last:
            piece, last = line.take()
            got.append(piece)
        got.append(None)

    thread = threading.Thread(target=wait_for_it, daemon=True)
    thread.start()
    thread.join(deadline_ms / 1000)
    if got and got[-1] is None:
        return b"".join(got[:-1])
    raise TimeoutError(f"rank {rank} waited {deadline_ms} ms for rank {peer} at step {step}")
