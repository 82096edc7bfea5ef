"""TCP: one connection between each two ranks, on this machine or between machines.

TCP carries a stream of bytes. It may take or give any part of what it is asked for, it knows no
messages, and a socket whose buffers are full takes nothing until the other side reads. So each
message is a header of fixed size and then its elements; what has arrived so far is kept per
connection, whatever happens in between; and no rank ever waits in the middle of a send while there
is something to receive, because the rank that should read may be waiting in just the same way.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch import Tensor

from minidist.transports import Label, Link, LostConnection
from minidist.transports.header import NBYTES, pack_header, plain, raw_bytes, unpack_header

PATIENCE_S = 0.02  # how long an exchange that has received waits for its receiver to take the rest


class TcpLink(Link):
    """Rank r's connected sockets, one per peer. For one thread."""

    def __init__(self, sockets: dict[int, socket.socket], began: float):
        self.sockets = sockets
        self.began = began  # time.monotonic() is one clock for all processes of a machine
        self._open()

    def _open(self) -> None:
        for connection in self.sockets.values():
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # do not collect
        self.arriving = {peer: _Arriving() for peer in self.sockets}
        self.carriers: dict[int, _Carrier] = {}

    def now(self) -> float:
        return time.monotonic() - self.began

    def put(self, dst: int, tensor: Tensor, label: Label) -> float:
        leaving = _Leaving(tensor, label)
        if not self._push(dst, leaving):
            self._carry(dst, leaving)
        return self.now()

    def get(self, src: int, timeout_s: float) -> tuple[Tensor, Label]:
        deadline = time.monotonic() + timeout_s
        while not (message := self._pull(src)):
            self._wait(deadline, src=src)
        return message

    def exchange(
        self, dst: int, tensor: Tensor, label: Label, src: int, timeout_s: float
    ) -> tuple[Tensor, Label, float]:
        leaving, message, sent_at = _Leaving(tensor, label), None, None
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                if sent_at is None and self._push(dst, leaving):
                    sent_at = self.now()
                if message is None and (message := self._pull(src)):
                    # The send is buffered: do not wait for a receiver that is busy elsewhere.
                    deadline = min(deadline, time.monotonic() + PATIENCE_S)
                if message and sent_at is not None:
                    return *message, sent_at
                self._wait(deadline, src if not message else None, dst if sent_at is None else None)
        except TimeoutError:
            if sent_at is None:
                self._carry(dst, leaving)
            if message is None:
                raise
            return *message, self.now()

    def _push(self, dst: int, leaving: _Leaving) -> bool:
        """Send what the socket takes at once; was that all?"""
        if dst in self.carriers and self.carriers[dst].busy:
            return False  # first come, first served
        return leaving.push(dst, self.sockets[dst])

    def _carry(self, dst: int, leaving: _Leaving) -> None:
        """Leave a copy of the rest to a thread, because the caller may overwrite its tensor."""
        if dst not in self.carriers:
            self.carriers[dst] = _Carrier(dst, self.sockets[dst])
        self.carriers[dst].take(leaving)

    def _pull(self, src: int) -> tuple[Tensor, Label] | None:
        """Receive what is there; the message, if that completes it."""
        arriving = self.arriving[src]
        if not arriving.pull(src, self.sockets[src]):
            return None
        self.arriving[src] = _Arriving()
        return arriving.tensor, arriving.label

    def _wait(self, deadline: float, src: int | None = None, dst: int | None = None) -> None:
        """Until `src` may have sent something or `dst` takes something; TimeoutError if neither."""
        wanted = select.poll()
        if src is not None:
            wanted.register(self.sockets[src], select.POLLIN)
        if dst is not None:
            both = select.POLLIN | select.POLLOUT if src == dst else select.POLLOUT
            wanted.register(self.sockets[dst], both)
        left = deadline - time.monotonic()
        if left <= 0 or not wanted.poll(left * 1000):
            raise TimeoutError

    def close(self) -> None:
        for connection in self.sockets.values():
            connection.close()

    def __getstate__(self) -> Any:
        return self.sockets, self.began

    def __setstate__(self, state: Any) -> None:
        self.sockets, self.began = state
        self._open()


class _Leaving:
    """What is left of a message on its way out."""

    def __init__(self, tensor: Tensor, label: Label):
        self.parts = [memoryview(pack_header(tensor, label)), raw_bytes(plain(tensor))]

    def push(self, dst: int, connection: socket.socket) -> bool:
        """Send until nothing is left (True) or the socket takes no more for now (False)."""
        try:
            while self.parts:
                sent = connection.sendmsg(self.parts)
                while self.parts and sent >= len(self.parts[0]):
                    sent -= len(self.parts.pop(0))
                if self.parts:
                    self.parts[0] = self.parts[0][sent:]
        except BlockingIOError:
            return False
        except OSError:
            raise LostConnection(dst) from None
        return True


class _Arriving:
    """A message that is coming in: first its header, then its elements."""

    def __init__(self) -> None:
        self.header = bytearray(NBYTES)
        self.room = memoryview(self.header)  # where the next bytes belong
        self.tensor: Tensor | None = None

    def pull(self, src: int, connection: socket.socket) -> bool:
        """Receive until the message is complete (True) or nothing more is there (False)."""
        try:
            while self.room:
                received = connection.recv_into(self.room)
                if not received:
                    raise LostConnection(src)
                self.room = self.room[received:]
                if not self.room and self.tensor is None:
                    dtype, shape, self.label = unpack_header(self.header)
                    self.tensor = torch.empty(shape, dtype=dtype)
                    self.room = raw_bytes(self.tensor)
        except BlockingIOError:
            return False
        except LostConnection:
            raise
        except OSError:
            raise LostConnection(src) from None
        return True


class _Carrier:
    """A thread that sends what a socket did not take at once. Started when first needed."""

    def __init__(self, dst: int, connection: socket.socket):
        self.dst = dst
        self.connection = connection
        self.waiting: deque[_Leaving] = deque()
        self.changed = threading.Condition()
        threading.Thread(target=self._run, name=f"to rank {dst}", daemon=True).start()

    @property
    def busy(self) -> bool:
        with self.changed:
            return bool(self.waiting)

    def take(self, leaving: _Leaving) -> None:
        leaving.parts = [memoryview(bytes(part)) for part in leaving.parts]
        with self.changed:
            self.waiting.append(leaving)
            self.changed.notify()

    def _run(self) -> None:
        room = select.poll()
        room.register(self.connection, select.POLLOUT)
        # A receiver that is gone needs nothing; the next receive from it says so.
        with contextlib.suppress(LostConnection, OSError):
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: self.waiting)
                while not self.waiting[0].push(self.dst, self.connection):
                    room.poll()
                with self.changed:
                    self.waiting.popleft()


def make_links(world_size: int, context: BaseContext) -> list[TcpLink]:
    """One link per rank. The connections are made here and handed to the ranks as they are.

    So there is no address to agree on, no port that might be taken, and nobody to wait for.
    """
    sockets: list[dict[int, socket.socket]] = [{} for _ in range(world_size)]
    began = time.monotonic()
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:  # port 0: any that is free
            server.settimeout(10.0)
            for low in range(world_size):
                for high in range(low + 1, world_size):
                    sockets[low][high], sockets[high][low] = _pair(server)
        return [TcpLink(row, began) for row in sockets]
    except OSError:
        for row in sockets:
            for connection in row.values():
                connection.close()
        raise


def _pair(server: socket.socket) -> tuple[socket.socket, socket.socket]:
    """The two ends of a new connection."""
    caller = socket.create_connection(server.getsockname(), timeout=10.0)
    try:
        while True:
            answered, address = server.accept()
            if address == caller.getsockname():
                return caller, answered
            answered.close()  # a stranger who tried the port
    except OSError:
        caller.close()
        raise


def needs(world_size: int) -> str:
    """What a run needs of the machine, for the message when it does not get it."""
    return f"{world_size * (world_size - 1)} free file descriptors (ulimit -n) and 127.0.0.1"
