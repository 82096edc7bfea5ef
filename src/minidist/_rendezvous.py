"""TCP connections between processes that share nothing but a torch.distributed store.

Every rank listens on a port that the system chooses, writes its address into the store and connects
to all ranks below it. So it works for ranks that torchrun started, on one machine or on many.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from datetime import timedelta

import torch.distributed as dist

from minidist.mesh import PeerLost

HELLO = struct.Struct("!16sII")  # the group's secret, the caller's rank, which of its lines


def connect(
    store: dist.Store, rank: int, world_size: int, lines: int, timeout_s: float
) -> list[dict[int, socket.socket]]:
    """`lines` separate connections to every other rank: [{peer: socket}, ...], one dict per line.

    All ranks must call it with the same store. Raises PeerLost, naming the rank that has not come.
    """
    deadline = time.monotonic() + timeout_s
    connections: list[dict[int, socket.socket]] = [{} for _ in range(lines)]
    host = _our_address(store)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, backlog=lines * world_size) as server:
        if rank == 0:
            store.set("secret", os.urandom(16).hex())
        store.set(f"address {rank}", json.dumps(server.getsockname()[:2]))
        secret = bytes.fromhex(_wait(store, "secret", 0, deadline))
        for peer in range(rank):
            address = tuple(json.loads(_wait(store, f"address {peer}", peer, deadline)))
            for line in range(lines):
                caller = socket.create_connection(address, timeout=_left(deadline))
                caller.sendall(HELLO.pack(secret, rank, line))
                connections[line][peer] = caller
        missing = {(peer, line) for peer in range(rank + 1, world_size) for line in range(lines)}
        while missing:
            server.settimeout(_left(deadline))
            try:
                caller, _ = server.accept()
                caller.settimeout(_left(deadline))
                theirs, peer, line = HELLO.unpack(caller.recv(HELLO.size, socket.MSG_WAITALL))
            except TimeoutError:
                ranks = sorted({peer for peer, _ in missing})
                raise PeerLost(
                    f"rank {rank} waited {timeout_s:g} s, and rank {ranks[0]} has not connected. "
                    "Has every rank been started, and did each call init_process_group?"
                ) from None
            except (struct.error, OSError):
                continue  # a stranger at the door, or one who left at once
            if theirs == secret and (peer, line) in missing:
                missing.remove((peer, line))
                connections[line][peer] = caller
    return connections


def _our_address(store: dist.Store) -> str:
    """Loopback, or, if the store is a server on another machine, the address it sees us under."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):
        return "127.0.0.1"
    family, kind, _, _, address = socket.getaddrinfo(
        store.host, store.port, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing, only asks for the route
        return probe.getsockname()[0]


def _wait(store: dist.Store, key: str, peer: int, deadline: float) -> str:
    try:
        store.wait([key], timedelta(seconds=_left(deadline)))
    except Exception as error:  # DistStoreError, or RuntimeError in older versions
        raise PeerLost(
            f"rank {peer} has not joined the group: {str(error).splitlines()[0]}. Has every rank "
            "been started, and did each call init_process_group?"
        ) from None
    return store.get(key).decode()


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
