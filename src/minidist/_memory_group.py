"""Shared memory between processes that share nothing but a torch.distributed store.

Rank 0 makes the memory, which has no name, and writes into the store how the kernel lets other
processes of the same user open it. So it works for ranks that torchrun started, on one machine.
"""

from __future__ import annotations

import os
import select
import socket
import time
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from minidist.transports import Label, LostConnection
from minidist.transports.shared_memory import SharedMemoryLink, make_links, open_memory

LOOK_EVERY_S = 1.0  # after the sender of a message that does not come


class WatchedLink(SharedMemoryLink):
    """Shared memory does not tell when a rank is gone; an idle connection to it does."""

    sockets: dict[int, socket.socket]

    def get(self, src: int, timeout_s: float) -> tuple[Tensor, Label]:
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > LOOK_EVERY_S:
            try:
                return super().get(src, LOOK_EVERY_S)
            except TimeoutError:
                self._look_after(src)
        return super().get(src, max(0.0, left))

    def _look_after(self, peer: int) -> None:
        try:
            connection = self.sockets[peer]
            if select.select([connection], [], [], 0)[0] and not connection.recv(1):
                raise LostConnection(peer)
        except (OSError, ValueError) as error:  # closed from here: the group has failed
            if isinstance(error, LostConnection):
                raise
            raise LostConnection(peer, "the connection to it was closed") from None


def shared_link(
    store: dist.Store,
    rank: int,
    world_size: int,
    sockets: dict[int, socket.socket],
    timeout_s: float,
) -> WatchedLink:
    """This rank's link on memory that all ranks of the group share.

    sockets: a connection to each other rank that nobody uses for anything else. All ranks must call
    it with the same store. Raises OSError, saying what it takes, if the memory cannot be shared.
    """
    others = [f"memory seen by {r}" for r in range(1, world_size)]
    if rank == 0:
        made = make_links(world_size)[0]
        memory, began = made.memory, made.began
        try:
            store.set("memory", f"{os.getpid()} {memory.fd} {began}")
            store.wait(others, timedelta(seconds=timeout_s))
        finally:
            memory.close()  # the map stays
        refused = [why for key in others if (why := store.get(key).decode()) != "yes"]
    else:
        store.wait(["memory"], timedelta(seconds=timeout_s))
        pid, fd, began = store.get("memory").decode().split()
        refused = []
        try:
            memory = open_memory(f"/proc/{pid}/fd/{fd}", world_size)
            memory.close()
        except OSError as error:
            refused = [str(error)]
        store.set(f"memory seen by {rank}", refused[0] if refused else "yes")
    if refused:
        raise OSError(
            f"the ranks cannot share memory: {refused[0]}. It takes Linux, and ranks of one user "
            'on one machine; the backend "minidist" works everywhere.'
        )
    link = WatchedLink(memory, rank, world_size, float(began))
    link.sockets = sockets
    return link
