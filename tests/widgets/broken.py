"""Ring allreduces with one fault each, as readers write them."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.mesh import Mesh


def split(mesh: Mesh, tensor: Tensor) -> tuple[Tensor, int, int]:
    chunks = tensor.clone().view(mesh.world_size, -1)
    return chunks, (mesh.rank + 1) % mesh.world_size, (mesh.rank - 1) % mesh.world_size


def off_by_one(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Adds what comes to the wrong chunk."""
    chunks, right, left = split(mesh, tensor)
    for step in range(mesh.world_size - 1):
        came = mesh.sendrecv(right, chunks[(mesh.rank - step) % mesh.world_size], left)
        chunks[(mesh.rank - step) % mesh.world_size] += came
    return chunks.view(-1)


def wrong_neighbour(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Sends to the left instead of to the right."""
    chunks, right, left = split(mesh, tensor)
    for step in range(mesh.world_size - 1):
        came = mesh.sendrecv(left, chunks[(mesh.rank - step) % mesh.world_size], right)
        chunks[(mesh.rank - step - 1) % mesh.world_size] += came
    return chunks.view(-1)


def adds_before_sending(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Doubles its own part of each chunk before it goes out."""
    chunks, right, left = split(mesh, tensor)
    for step in range(mesh.world_size - 1):
        out = chunks[(mesh.rank - step) % mesh.world_size]
        out += tensor.view(mesh.world_size, -1)[(mesh.rank - step) % mesh.world_size]
        into = chunks[(mesh.rank - step - 1) % mesh.world_size]
        into += mesh.sendrecv(right, out, left)
    return chunks.view(-1)


def whole_tensor(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Right, but sends the whole tensor in every step."""
    total, passing = tensor.clone(), tensor
    for _ in range(mesh.world_size - 1):
        passing = mesh.sendrecv(
            (mesh.rank + 1) % mesh.world_size, passing, (mesh.rank - 1) % mesh.world_size
        )
        total += passing
    return total


def adds_twice(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Adds every chunk that comes two times."""
    chunks, right, left = split(mesh, tensor)
    for step in range(mesh.world_size - 1):
        came = mesh.sendrecv(right, chunks[(mesh.rank - step) % mesh.world_size], left)
        chunks[(mesh.rank - step - 1) % mesh.world_size] += 2 * came
    return chunks.view(-1)


def forgets_to_add(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Takes what comes and throws it away."""
    chunks, right, left = split(mesh, tensor)
    for step in range(mesh.world_size - 1):
        came = mesh.sendrecv(right, chunks[(mesh.rank - step) % mesh.world_size], left)
        assert came is not None
    return chunks.view(-1)


def all_receive_first(mesh: Mesh, tensor: Tensor) -> Tensor:
    """One good step, then every rank waits before it sends: a deadlock."""
    chunks, right, left = split(mesh, tensor)
    into = chunks[(mesh.rank - 1) % mesh.world_size]
    into += mesh.sendrecv(right, chunks[mesh.rank], left)
    came = mesh.recv(left)
    mesh.send(right, chunks[(mesh.rank - 1) % mesh.world_size])
    return came


def raises_halfway(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Rank 2 stumbles after its first step."""
    chunks, right, left = split(mesh, tensor)
    for step in range(mesh.world_size - 1):
        into = chunks[(mesh.rank - step - 1) % mesh.world_size]
        into += mesh.sendrecv(right, chunks[(mesh.rank - step) % mesh.world_size], left)
        if mesh.rank == 2:
            raise IndexError("chunk 9 of 4")
    return chunks.view(-1)


def sends_too_much(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Nobody takes the last message."""
    chunks, right, left = split(mesh, tensor)
    came = mesh.sendrecv(right, chunks[mesh.rank], left)
    mesh.send(right, chunks[0])
    return came


def never_ends(mesh: Mesh, tensor: Tensor) -> Tensor:
    """A loop without an end."""
    _, right, left = split(mesh, tensor)
    while True:
        tensor = mesh.sendrecv(right, tensor, left)


# The same right algorithm, kept in memory in other ways.


def list_of_clones(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Chunks as a list of separate tensors; each sum is a new tensor."""
    size, rank = mesh.world_size, mesh.rank
    pieces = [piece.clone() for piece in tensor.chunk(size)]
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        came = mesh.sendrecv(right, pieces[(rank - step) % size], left)
        pieces[(rank - step - 1) % size] = pieces[(rank - step - 1) % size] + came
    for step in range(size - 1):
        pieces[(rank - step) % size] = mesh.sendrecv(right, pieces[(rank - step + 1) % size], left)
    return torch.cat(pieces)


def columns(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Chunks as columns of a matrix: strided views."""
    size, rank = mesh.world_size, mesh.rank
    matrix = tensor.view(size, -1).t().clone(memory_format=torch.contiguous_format)
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        column = matrix[:, (rank - step - 1) % size]
        column += mesh.sendrecv(right, matrix[:, (rank - step) % size], left)
    for step in range(size - 1):
        came = mesh.sendrecv(right, matrix[:, (rank - step + 1) % size], left)
        matrix[:, (rank - step) % size] = came
    return matrix.t().reshape(-1)


def copies_to_send(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Sends copies, with plain send and recv, and adds in place to memory no verb ever sees."""
    size, rank = mesh.world_size, mesh.rank
    flat = tensor.clone()
    part = tensor.numel() // size

    def at(chunk: int) -> slice:
        return slice(chunk % size * part, (chunk % size + 1) * part)

    for step in range(size - 1):
        out = flat[at(rank - step)].clone()
        mesh.send((rank + 1) % size, out)
        flat[at(rank - step - 1)] += mesh.recv((rank - 1) % size)
    for step in range(size - 1):
        mesh.send((rank + 1) % size, flat[at(rank - step + 1)].clone())
        flat[at(rank - step)] = mesh.recv((rank - 1) % size)
    return flat
