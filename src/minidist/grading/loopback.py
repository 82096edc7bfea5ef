"""Sockets between threads of one process, and a Link made of a reader's pair of functions."""

from __future__ import annotations

import queue as queues
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from minidist.grading.cases import Functions
from minidist.transports import Label, Link


class Trickle(socket.socket):
    """A socket that never takes or gives more than a few bytes at a time, as a slow wire does."""

    at_most = 3

    def recv(self, count: int, *args: Any) -> bytes:
        return super().recv(min(count, self.at_most), *args)

    def recv_into(self, buffer: Any, count: int = 0, *args: Any) -> int:
        room = count or memoryview(buffer).nbytes
        return super().recv_into(buffer, min(room, self.at_most), *args)

    def send(self, data: Any, *args: Any) -> int:
        return super().send(memoryview(data).cast("B")[: self.at_most], *args)

    def sendmsg(self, parts: Any, *args: Any) -> int:
        return self.send(b"".join(bytes(part) for part in parts))


class Caller:
    """A call in a thread of its own, whose exception comes out where the result is asked for."""

    def __init__(self, call: Callable[[], Any]):
        self.call = call
        self.error: BaseException | None = None
        self.value: Any = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.value = self.call()
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        self.thread.join()
        if self.error:
            raise self.error
        return self.value


class SocketLink(Link):
    """A Link made of the reader's pair; a sender thread per peer, so that no send waits."""

    def __init__(self, functions: Functions, sockets: dict[int, socket.socket]):
        self.send_tensor, self.recv_tensor = functions
        self.sockets = sockets
        self.counts: dict[int, int] = dict.fromkeys(sockets, 0)
        self.errors: list[BaseException] = []
        self.lines: dict[int, queues.Queue[Tensor]] = {peer: queues.Queue() for peer in sockets}
        for peer in sockets:
            threading.Thread(target=self._send, args=(peer,), daemon=True).start()

    def now(self) -> float:
        return time.monotonic()

    def put(self, dst: int, tensor: Tensor, label: Label) -> float:
        self.lines[dst].put(tensor.clone())
        return self.now()

    def get(self, src: int, timeout_s: float) -> tuple[Tensor, Label]:
        tensor = self.recv_tensor(self.sockets[src])
        number = self.counts[src]
        self.counts[src] = number + 1
        return tensor, Label(number)

    def _send(self, peer: int) -> None:
        try:
            while True:
                self.send_tensor(self.sockets[peer], self.lines[peer].get())
        except BaseException as error:
            self.errors.append(error)
            self.sockets[peer].shutdown(socket.SHUT_RDWR)  # or the receiver would wait for it
