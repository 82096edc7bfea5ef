"""Mesh: what one rank sees of the world, and the three verbs that every collective is written in.

A collective is a plain function of a Mesh. It never asks which wire carries its messages, and it
never receives "from anyone": each receive names its sender, each pair of ranks is a first-in,
first-out line, and so a run gives the same result and the same trace every time.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from minidist.trace import Event, dtype_name

if TYPE_CHECKING:
    from torch import Tensor

    from minidist.transports import Link

RECV_TIMEOUT_S = 30.0


class MeshError(RuntimeError):
    """Something went wrong between ranks; the message says who, with whom, where and what to do."""


class RecvTimeout(MeshError):
    """A receive waited longer than its deadline."""


class PeerLost(MeshError):
    """A rank's process ended before its function returned."""


class MessageMismatch(MeshError):
    """A message arrived with another dtype or shape than the receiver had announced."""


class Deadlock(MeshError):
    """Every rank that has not finished waits for another: nobody can ever move again."""


class RankFailed(MeshError):
    """A rank's function raised; its own traceback is in the message, its error in __cause__."""


class RunTimeout(MeshError):
    """The ranks were not done when the run's time was up."""


@dataclass
class Mesh:
    """One rank's view of `world_size` ranks that are joined pairwise.

    Every verb appends to `events`, and whatever the course counts, draws, prices or grades is read
    from there.
    """

    rank: int
    world_size: int
    link: Link
    recv_timeout_s: float = RECV_TIMEOUT_S
    events: list[Event] = field(default_factory=list)
    step: int = 0  # verb calls so far
    waits_for: Wait | None = None  # set while a verb is in progress; read by the diagnosis

    def send(self, dst: int, tensor: Tensor) -> None:
        """Send a copy of `tensor` to rank `dst`.

        Buffered: when this returns, the caller may overwrite the tensor.
        Raises ValueError if `dst` is this rank or no rank at all.
        """
        self._check_peer("send to", dst)
        start = self.link.now()
        self.waits_for = Wait("send to", dst, self.step)
        end = self.link.put(dst, tensor)
        self._record("send", dst, tensor, start, end)
        self._next_step()

    def recv(self, src: int, like: Tensor | None = None) -> Tensor:
        """Return the next message from rank `src`, a new tensor.

        With `like`, the message must have that tensor's dtype and shape (else MessageMismatch).
        Raises RecvTimeout after `recv_timeout_s`, ValueError if `src` is this rank or no rank.
        """
        self._check_peer("recv from", src)
        start = self.link.now()
        self.waits_for = Wait("recv from", src, self.step)
        try:
            tensor = self.link.get(src, self.recv_timeout_s)
        except TimeoutError:
            raise self._timeout(src) from None
        self._received(src, tensor, like, start)
        self._next_step()
        return tensor

    def sendrecv(self, dst: int, tensor: Tensor, src: int, like: Tensor | None = None) -> Tensor:
        """One ring step: send `tensor` to `dst` while receiving from `src`; return what came.

        The two go on at the same time, so a whole ring of ranks may call it at once even where a
        plain send would wait for its receiver. What comes must have the dtype and shape of `like`,
        or of `tensor` when `like` is not given.
        """
        self._check_peer("send to", dst)
        self._check_peer("recv from", src)
        start = self.link.now()
        self.waits_for = Wait("recv from", src, self.step)
        try:
            received, sent_at = self.link.exchange(dst, tensor, src, self.recv_timeout_s)
        except TimeoutError:
            raise self._timeout(src) from None
        self._record("send", dst, tensor, start, sent_at)
        self._received(src, received, tensor if like is None else like, start)
        self._next_step()
        return received

    def _received(self, src: int, tensor: Tensor, like: Tensor | None, start: float) -> None:
        if like is not None and (tensor.dtype, tensor.shape) != (like.dtype, like.shape):
            raise MessageMismatch(
                f"rank {self.rank} expected {describe(like)} from rank {src} at step {self.step}, "
                f"but rank {src} sent {describe(tensor)}. Give every rank a tensor of the same "
                "dtype and shape, or pass `like` when the two really differ."
            )
        self._record("recv", src, tensor, start, self.link.now())

    def _record(self, kind: str, peer: int, tensor: Tensor, start: float, end: float) -> None:
        offset = tensor.storage_offset() if kind == "send" else None
        self.events.append(
            Event(
                self.rank,
                kind,
                peer,
                self.step,
                tensor.numel() * tensor.element_size(),
                dtype_name(tensor.dtype),
                tuple(tensor.shape),
                offset,
                start,
                end,
            )
        )

    def _next_step(self) -> None:
        self.step += 1
        self.waits_for = None

    def _check_peer(self, verb: str, peer: int) -> None:
        if peer == self.rank:
            raise ValueError(
                f"rank {self.rank} would {verb} itself at step {self.step}; "
                "keep local data local, only other ranks are peers"
            )
        if not 0 <= peer < self.world_size:
            raise ValueError(
                f"rank {self.rank} would {verb} rank {peer} at step {self.step}, but ranks go from "
                f"0 to {self.world_size - 1}; is a `% mesh.world_size` missing?"
            )

    def _timeout(self, src: int) -> RecvTimeout:
        return RecvTimeout(
            f"rank {self.rank} waited {self.recv_timeout_s:g} s for a message from rank {src} at "
            f"step {self.step}. Either rank {src} never sends it, or it is slower than that: check "
            f"which send of rank {src} should match, or raise recv_timeout_ms."
        )


@dataclass(frozen=True)
class Wait:
    """What a rank is in the middle of: `verb` ("recv from" or "send to"), the peer, the step."""

    verb: str
    peer: int
    step: int

    def __str__(self) -> str:
        return f"{self.verb} rank {self.peer}, step {self.step}"


def describe(tensor: Tensor) -> str:
    """'float32 of shape (3, 4)', for messages."""
    return f"{dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}"


def describe_waits(waits: dict[int, Wait], finished: Iterable[int] = ()) -> str:
    """Who waits for whom, as text; names the circle if there is one."""
    finished = set(finished)
    lines = []
    for rank, wait in sorted(waits.items()):
        gone = " (which has already finished)" if wait.peer in finished else ""
        lines.append(f"  rank {rank}: {wait}{gone}")
    circle = wait_circle({rank: wait.peer for rank, wait in waits.items()})
    if circle:
        lines.append("They wait in a circle: " + " -> ".join(map(str, [*circle, circle[0]])))
    return "\n".join(lines)


def wait_circle(waits_for: dict[int, int]) -> list[int]:
    """The ranks of a circle in a wait-for graph with one arrow per rank, or []."""
    for first in sorted(waits_for):
        path, rank = [], first
        while rank in waits_for and rank not in path:
            path.append(rank)
            rank = waits_for[rank]
        if rank in path:
            circle = path[path.index(rank) :]
            smallest = circle.index(min(circle))
            return circle[smallest:] + circle[:smallest]
    return []


_LIBRARIES = (os.path.dirname(__file__), *{sysconfig.get_path(p) for p in ("stdlib", "purelib")})


def place(calls: Iterable[tuple[FrameType, int]]) -> str:
    """'in its own code, work at notebook.py:12': the first (frame, line) that no library owns."""
    for frame, line in calls:
        code = frame.f_code
        if not code.co_filename.startswith((*_LIBRARIES, "<frozen", "<string>")):
            return f"in its own code, {code.co_name} at {os.path.basename(code.co_filename)}:{line}"
    return "starting or leaving"


def show(rank: int, line: str, out: TextIO) -> None:
    """Show a line that a rank printed; what `out` has no character for appears as an escape."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(f"[rank {rank}] {line}\n".encode(encoding, "backslashreplace").decode(encoding))
    out.flush()
