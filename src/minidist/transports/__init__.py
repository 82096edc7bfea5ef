"""Transports: how bytes get from one rank to another. Collectives never look in here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Label(NamedTuple):
    """What the Mesh writes on each message. A transport carries it and does not look at it."""

    number: int  # messages from this sender to this receiver before this one
    collective: str = ""  # the one of ours that sent it, "" for any other code
    checksum: int = 0  # CRC-32 of the elements, 0 unless the run checks them


class LostConnection(ConnectionError):
    """The wire to rank `peer` is cut; `why` is a clause that says what that means."""

    def __init__(self, peer: int, why: str = "its process has ended"):
        super().__init__(peer, why)
        self.peer = peer
        self.why = why


class Link:
    """One rank's end of a transport. All times are seconds since the run began.

    Each ordered pair of ranks is a line of its own, first in, first out.
    """

    buffered = True  # a send does not wait for its receiver

    def now(self) -> float:
        raise NotImplementedError

    def put(self, dst: int, tensor: Tensor, label: Label) -> float:
        """Take a copy of `tensor` for rank `dst`; return the time at which it had left."""
        raise NotImplementedError

    def get(self, src: int, timeout_s: float) -> tuple[Tensor, Label]:
        """The next message from rank `src`; TimeoutError after `timeout_s`.

        What has come of it by then is kept, and the next `get` goes on from there.
        """
        raise NotImplementedError

    def exchange(
        self, dst: int, tensor: Tensor, label: Label, src: int, timeout_s: float
    ) -> tuple[Tensor, Label, float]:
        """`put` and `get` at the same time: what came from `src`, and when ours had left."""
        sent_at = self.put(dst, tensor, label)
        return *self.get(src, timeout_s), sent_at

    def close(self) -> None:
        """Let go of what this process holds of the wires; the other ranks keep theirs."""
