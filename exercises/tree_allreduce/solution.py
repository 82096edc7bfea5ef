"""Exercise: tree allreduce, the sum climbs a tree and comes down again."""

import torch


def tree_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' tensors, on every rank, in few steps.

    Up: neighbours add (rank 1 sends to 0, 3 to 2, ...), then those that are left, at twice the
    distance, until rank 0 has the sum. Down: rank 0 hands it out, and whoever has it helps.

    mesh: mesh.rank, mesh.world_size, mesh.send(dst, tensor), mesh.recv(src) -> tensor.
    tensor: any shape (also 0-dim and empty), any dtype, strided or not, the same on every rank. It
    is left alone.
    Returns a new tensor of the same shape and dtype.
    Price: 2 ceil(log2 N) steps for any N; each rank but 0 sends its partial sum up once, and no
    rank sends the sum down more than ceil(log2 N) times.
    """
    rank, world_size = mesh.rank, mesh.world_size
    total = tensor.clone()
    distances = [1 << k for k in range((world_size - 1).bit_length())]
    for distance in distances:  # up: of those that are left, every second one sends and is done
        if rank % (2 * distance) == distance:
            mesh.send(rank - distance, total)
            break
        if rank + distance < world_size:
            total += mesh.recv(rank + distance)
    for distance in reversed(distances):  # down: the same pairs, the last one first
        if rank % (2 * distance) == distance:
            total = mesh.recv(rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            mesh.send(rank + distance, total)
    return total
