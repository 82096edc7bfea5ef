"""Collectives: plain functions of one rank's Mesh, one file each, the naive one first."""

from minidist.collectives.allgather import allgather
from minidist.collectives.allreduce import naive_allreduce, ring_allreduce
from minidist.collectives.broadcast import broadcast
from minidist.collectives.reduce_scatter import reduce_scatter

__all__ = ["allgather", "broadcast", "naive_allreduce", "reduce_scatter", "ring_allreduce"]
