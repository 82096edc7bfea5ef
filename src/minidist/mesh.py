"""Mesh: what one rank sees of the world, and the three verbs that every collective is written in.

A collective is a plain function of a Mesh. It never asks which wire carries its messages, and it
never receives "from anyone": each receive names its sender, each pair of ranks is a first-in,
first-out line, and so a run gives the same result and the same trace every time.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from minidist.trace import Event, Mark, dtype_name
from minidist.transports import Label, LostConnection
from minidist.transports.header import plain, raw_bytes

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


class MessageLost(MeshError):
    """A message came out of turn: one before it was lost on the way, or one came twice."""


class MessageCorrupted(MeshError):
    """A message arrived with other bytes than were sent."""


class CollectiveMismatch(MeshError):
    """Two ranks that should be in one collective are in two different ones."""


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
    marks: list[Mark] = field(default_factory=list)
    step: int = 0  # verb calls so far
    waits_for: Wait | None = None  # set while a verb is in progress; read by the diagnosis
    checksums: bool = False  # whether each message carries one
    sent: Counter[int] = field(default_factory=Counter)  # messages to each rank so far
    received: Counter[int] = field(default_factory=Counter)  # messages from each rank so far
    alone: bool = False  # nobody collects the last messages of all ranks if one fails

    def send(self, dst: int, tensor: Tensor) -> None:
        """Send a copy of `tensor` to rank `dst`.

        Buffered: when this returns, the caller may overwrite the tensor.
        Raises PeerLost where the wire notices that `dst` is gone, ValueError if `dst` is this rank
        or no rank at all.
        """
        self._check_peer("send to", dst)
        start = self.link.now()
        self.waits_for = Wait("send to", dst, self.step, _collective())
        try:
            end = self.link.put(dst, tensor, self._label(dst, tensor))
        except LostConnection as error:
            raise self._lost(error) from None
        self._record("send", dst, tensor, start, end)
        self._next_step()

    def recv(self, src: int, like: Tensor | None = None) -> Tensor:
        """Return the next message from rank `src`, a new tensor.

        With `like`, the message must have that tensor's dtype and shape (else MessageMismatch), and
        the result is on its device; without, it is on the CPU.
        Raises RecvTimeout after `recv_timeout_s`, PeerLost where the wire notices that `src` is
        gone, MessageLost if the message is not the next one, ValueError if `src` is this rank or no
        rank.
        """
        self._check_peer("recv from", src)
        start = self.link.now()
        self.waits_for = Wait("recv from", src, self.step, _collective())
        try:
            tensor, label = self.link.get(src, self.recv_timeout_s)
        except TimeoutError:
            raise self._timeout(src) from None
        except LostConnection as error:
            raise self._lost(error) from None
        tensor = self._received(src, tensor, label, like, start)
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
        self.waits_for = Wait("recv from", src, self.step, _collective())
        label = self._label(dst, tensor)
        try:
            received, its_label, sent_at = self.link.exchange(
                dst, tensor, label, src, self.recv_timeout_s
            )
        except TimeoutError:
            raise self._timeout(src) from None
        except LostConnection as error:
            raise self._lost(error) from None
        self._record("send", dst, tensor, start, sent_at)
        like = tensor if like is None else like
        received = self._received(src, received, its_label, like, start)
        self._next_step()
        return received

    def mark(self, kind: str, name: str = "", bucket: int | None = None, nbytes: int = 0) -> None:
        """Write into the trace that something happened now that is no message."""
        self.marks.append(Mark(self.rank, kind, name, bucket, nbytes, self.link.now()))

    def _label(self, dst: int, tensor: Tensor) -> Label:
        number = self.sent[dst]
        self.sent[dst] += 1
        assert self.waits_for is not None
        collective = self.waits_for.within
        return Label(number, collective, checksum(tensor) if self.checksums else 0)

    def _received(
        self, src: int, tensor: Tensor, label: Label, like: Tensor | None, start: float
    ) -> Tensor:
        """Check what came, record it, put it where the caller wants it."""
        self._check_label(src, label)
        if like is not None and (tensor.dtype, tensor.shape) != (like.dtype, like.shape):
            raise self._error(
                MessageMismatch,
                f"rank {self.rank} expected {describe(like)} from rank {src} at step {self.step}, "
                f"but rank {src} sent {describe(tensor)}. Give every rank a tensor of the same "
                "dtype and shape, or pass `like` when the two really differ.",
            )
        if self.checksums and checksum(tensor) != label.checksum:
            raise self._error(
                MessageCorrupted,
                f"message {label.number} from rank {src} reached rank {self.rank} at step "
                f"{self.step} with other bytes than were sent ({describe(tensor)}). The wire or "
                "the memory between the two is at fault, not the collective.",
            )
        self.received[src] += 1
        if like is not None and tensor.device != like.device:
            tensor = tensor.to(like.device)  # wires of plain bytes end in the CPU's memory
        self._record("recv", src, tensor, start, self.link.now())
        return tensor

    def _check_label(self, src: int, label: Label) -> None:
        expected = self.received[src]
        if label.number != expected:
            if label.number > expected:
                lost = range(expected, label.number)
                what = "message " if len(lost) == 1 else "messages "
                cause = what + ", ".join(map(str, lost)) + " must have been lost on the way"
            else:
                cause = "it must have been delivered twice"
            raise self._error(
                MessageLost,
                f"rank {self.rank} expected message {expected} from rank {src} at step "
                f"{self.step}, but message {label.number} came: {cause}.",
            )
        assert self.waits_for is not None
        here = self.waits_for.within
        if label.collective and here and label.collective != here:
            raise self._error(
                CollectiveMismatch,
                f"rank {self.rank} is in {here} at step {self.step}, but rank {src} sent it a "
                f"message of {label.collective}: the two call their collectives in different "
                "orders. Make every rank call the same collectives in the same order.",
            )

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

    def _error(self, kind: type[MeshError], text: str) -> MeshError:
        """The error; it carries the flight recorder's tail where nobody else would show it."""
        last = [event.brief() for event in tuple(self.events)[-4:]] if self.alone else []
        tail = f"\nLast messages of rank {self.rank}: " + "; ".join(last) if last else ""
        return kind(text + tail)

    def _timeout(self, src: int) -> MeshError:
        return self._error(
            RecvTimeout,
            f"rank {self.rank} waited {self.recv_timeout_s:g} s for a message from rank {src} at "
            f"step {self.step}. Either rank {src} never sends it, or it is slower than that: check "
            f"which send of rank {src} should match, or raise recv_timeout_ms.",
        )

    def _lost(self, error: LostConnection) -> MeshError:
        return self._error(
            PeerLost,
            f"rank {self.rank} lost its connection to rank {error.peer} at step {self.step}: "
            f"{error.why}.",
        )


class Wait(NamedTuple):
    """What a rank is in the middle of: `verb` ("recv from" or "send to"), the peer, the step."""

    verb: str
    peer: int
    step: int
    within: str = ""  # the collective of this package that the verb belongs to

    def __str__(self) -> str:
        within = f" of {self.within}" if self.within else ""
        return f"{self.verb} rank {self.peer}, step {self.step}{within}"


COLLECTIVES = os.path.join(os.path.dirname(__file__), "collectives")


def _collective() -> str:
    """Which of our collectives, as its user called it, a verb is being called from."""
    name = ""
    frame = sys._getframe(2)
    while frame is not None and _is_ours(frame.f_code.co_filename):
        name = frame.f_code.co_name
        frame = frame.f_back
    return name


@cache
def _is_ours(filename: str) -> bool:
    return filename.startswith(COLLECTIVES)


def checksum(tensor: Tensor) -> int:
    """CRC-32 of a tensor's elements."""
    return 0 if tensor.is_meta else zlib.crc32(raw_bytes(plain(tensor)))


def describe(tensor: Tensor) -> str:
    """'float32 of shape (3, 4)', for messages."""
    return f"{dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}"
