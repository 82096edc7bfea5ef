"""A line on which a message arrives in pieces: on a clock of its own, or on the real one."""

from __future__ import annotations

import contextlib
import queue as queues
import threading
import time
from collections import deque


class Line:
    """A line on which messages arrive in pieces, on a clock that only moves when somebody waits."""

    POLL_S = 0.00005  # what looking costs, so that who only looks gets older, too
    MAX_LOOKS = 20_000

    def __init__(self, arrivals: list[tuple[float, bytes, bool]]):
        self.kept: list[bytes] = []
        self._arrivals = deque(arrivals)
        self._clock = 0.0
        self._looks = 0

    def now(self) -> float:
        return self._clock

    def wait(self, seconds: float) -> bool:
        self._looks += 1
        if self._looks > self.MAX_LOOKS:
            raise Forever
        at = self._next()
        if at <= self._clock + max(0.0, seconds):
            self._clock = max(self._clock, at)
            return True
        self._clock += max(self.POLL_S, seconds)
        return False

    def take(self) -> tuple[bytes, bool]:
        at = self._next()
        if at == float("inf"):
            raise Forever
        self._clock = max(self._clock, at)
        _, piece, last = self._arrivals.popleft()
        return piece, last

    def _next(self) -> float:
        return self._arrivals[0][0] if self._arrivals else float("inf")


class Forever(BaseException):
    """Waiting for something that never comes."""


class PipeLine(Line):
    """The same line on a real clock, with another thread at the far end."""

    FOREVER_S = 3.0  # whoever waits longer for one piece is not going to stop

    def __init__(self, arrivals: list[tuple[float, bytes, bool]]):
        super().__init__([])
        self._began = time.monotonic()
        self._queue: queues.Queue[tuple[bytes, bool]] = queues.Queue()
        self._seen: deque[tuple[bytes, bool]] = deque()
        threading.Thread(target=self._send, args=(arrivals,), daemon=True).start()

    def _send(self, arrivals: list[tuple[float, bytes, bool]]) -> None:
        for at, piece, last in arrivals:
            time.sleep(max(0.0, at - self.now()))
            self._queue.put((piece, last))

    def now(self) -> float:
        return time.monotonic() - self._began

    def wait(self, seconds: float) -> bool:
        self._looks += 1
        if not self._seen:
            with contextlib.suppress(queues.Empty):
                room = min(max(1e-6, seconds), self.FOREVER_S)
                self._seen.append(self._queue.get(timeout=room))
        if not self._seen and seconds > self.FOREVER_S:
            raise Forever
        return bool(self._seen)

    def take(self) -> tuple[bytes, bool]:
        if not self.wait(2 * self.FOREVER_S):
            raise Forever
        return self._seen.popleft()
