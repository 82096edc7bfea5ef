"""Transports: how bytes get from one rank to another. Collectives never look in here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Link:
    """One rank's end of a transport. All times are seconds since the run began."""

    def now(self) -> float:
        raise NotImplementedError

    def put(self, dst: int, tensor: Tensor) -> float:
        """Take a copy of `tensor` for rank `dst`; return the time at which it had left."""
        raise NotImplementedError

    def get(self, src: int, timeout_s: float) -> Tensor:
        """The next message from rank `src`; TimeoutError after `timeout_s`."""
        raise NotImplementedError

    def exchange(
        self, dst: int, tensor: Tensor, src: int, timeout_s: float
    ) -> tuple[Tensor, float]:
        """`put` and `get` at the same time: (what came from `src`, when ours had left)."""
        sent_at = self.put(dst, tensor)
        return self.get(src, timeout_s), sent_at
