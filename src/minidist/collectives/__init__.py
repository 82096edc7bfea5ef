"""Collectives: plain functions of one rank's Mesh, one file each, the naive one first."""

from minidist.collectives.allgather import allgather
from minidist.collectives.allreduce import naive_allreduce, ring_allreduce, ring_allreduce_
from minidist.collectives.auto import allreduce, measured_link
from minidist.collectives.broadcast import broadcast
from minidist.collectives.group import group
from minidist.collectives.halving_doubling import halving_doubling_allreduce
from minidist.collectives.hierarchical import hierarchical_allreduce
from minidist.collectives.reduce_scatter import reduce_scatter
from minidist.collectives.tree import reduce, tree_allreduce
from minidist.collectives.two_shot import two_shot_allreduce

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "group",
    "halving_doubling_allreduce",
    "hierarchical_allreduce",
    "measured_link",
    "naive_allreduce",
    "reduce",
    "reduce_scatter",
    "ring_allreduce",
    "ring_allreduce_",
    "tree_allreduce",
    "two_shot_allreduce",
]
