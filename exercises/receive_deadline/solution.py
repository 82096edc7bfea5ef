"""Exercise: a receive that gives up in time, and loses nothing."""


def receive(line, deadline_ms: float, rank: int, peer: int, step: int) -> bytes:
    """The next message on `line`, or a TimeoutError after `deadline_ms` milliseconds.

    A message comes in pieces. line.wait(seconds) sleeps until a piece is there, at most that long,
    and says whether one is. line.take() -> (piece, last) takes the next piece; `last` is true for
    the last piece of a message; with none there, it waits for ever. line.now() is the time in
    seconds. line.kept is a list of yours that is there again at the next call: what has come of a
    message when time is up belongs in it, for the next call goes on from there. It starts out
    empty.

    deadline_ms: for the whole message, not for each piece; 0 means what is there already.
    rank, peer, step: who we are, who should have sent, and where; for the error.
    Returns the bytes of the whole message.
    Raises TimeoutError, whose text names rank, peer, step and deadline_ms.
    """
    until = line.now() + deadline_ms / 1000
    while line.wait(until - line.now()):
        piece, last = line.take()
        line.kept.append(piece)
        if last:
            message = b"".join(line.kept)
            line.kept.clear()
            return message
    raise TimeoutError(
        f"rank {rank} waited {deadline_ms} ms for a message from rank {peer} at step {step}"
    )
