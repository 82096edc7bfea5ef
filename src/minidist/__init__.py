"""minidist: collectives from the wire up. The package behind *Rings, Buckets, Graphs*."""

from minidist.collectives import (
    allgather,
    broadcast,
    naive_allreduce,
    reduce_scatter,
    ring_allreduce,
)
from minidist.launch import RankFailed, Run, RunTimeout, run
from minidist.mesh import (
    CollectiveMismatch,
    Deadlock,
    Mesh,
    MeshError,
    MessageCorrupted,
    MessageLost,
    MessageMismatch,
    PeerLost,
    RecvTimeout,
)
from minidist.trace import Event, Trace
from minidist.transports.simulated import Simulated

PRIMITIVES = ("allreduce", "broadcast", "allgather", "reduce_scatter")

__all__ = [
    "PRIMITIVES",
    "CollectiveMismatch",
    "Deadlock",
    "Event",
    "Mesh",
    "MeshError",
    "MessageCorrupted",
    "MessageLost",
    "MessageMismatch",
    "PeerLost",
    "RankFailed",
    "RecvTimeout",
    "Run",
    "RunTimeout",
    "Simulated",
    "Trace",
    "allgather",
    "broadcast",
    "naive_allreduce",
    "reduce_scatter",
    "ring_allreduce",
    "run",
]
