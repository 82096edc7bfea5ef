"""Allreduce for nodes: a ring where links are fast, a tree where they are slow."""

from __future__ import annotations

from torch import Tensor

from minidist.collectives.chunks import join, split
from minidist.collectives.group import group
from minidist.collectives.ring import gather_pass_, reduce_pass_
from minidist.collectives.tree import tree_allreduce
from minidist.mesh import Mesh


def hierarchical_allreduce(mesh: Mesh, tensor: Tensor, node_size: int) -> Tensor:
    """Sum over ranks, where ranks 0 to node_size - 1 are one node, the next node_size another.

    First a ring in each node leaves every rank there with the node's sum of one chunk; then the
    ranks of all nodes that hold the same chunk add it along a tree; then the ring in each node
    hands the finished chunks around. So every rank talks to other nodes at once, each about 1/g of
    the tensor, g = node_size. The last node may be smaller; its ranks then hold several chunks.
    tensor: any shape and length, the same on every rank. Returns a new tensor, bit for bit the
    same on every rank; the input is left alone.
    Steps with N/g full nodes: 2(g - 1) of T/g bytes inside, 2 ceil(log2 N/g) of T/g bytes across.
    Raises ValueError if node_size is below 1, MessageMismatch if a rank's dtype or size differs.
    """
    if node_size < 1:
        raise ValueError(f"node_size is {node_size}; a node has at least one rank")
    size = min(node_size, mesh.world_size)
    nodes = [
        range(first, min(first + size, mesh.world_size))
        for first in range(0, mesh.world_size, size)
    ]
    members = nodes[mesh.rank // size]
    node = group(mesh, members)
    chunks = split(tensor, size)
    parts = [chunks[rows.start : rows.stop] for rows in _shares(size, len(members))]
    mine = (node.rank + 1) % node.world_size  # the part that the reduce pass leaves here

    reduce_pass_(node, parts)
    for chunk in _shares(size, len(members))[mine]:
        line = group(mesh, [_holder(chunk, size, node) for node in nodes])
        chunks[chunk] = tree_allreduce(line, chunks[chunk])
    gather_pass_(node, parts, first=mine)
    return join(chunks, like=tensor)


def _shares(chunks: int, ranks: int) -> list[range]:
    """`chunks` numbers cut into `ranks` runs, as even as can be."""
    return [range(chunks * i // ranks, chunks * (i + 1) // ranks) for i in range(ranks)]


def _holder(chunk: int, chunks: int, node: range) -> int:
    """The rank of `node` that holds the node's sum of `chunk` after the reduce pass."""
    shares = _shares(chunks, len(node))
    part = next(i for i, share in enumerate(shares) if chunk in share)
    return node[(part - 1) % len(node)]
