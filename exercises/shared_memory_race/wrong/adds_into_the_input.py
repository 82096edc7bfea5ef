"""Adds into the tensor that it was given, and sends on what it has added up."""

import torch

CHECK = "sums"
SAYS = "wrong sum"


def shared_memory_ring(rank, world_size, windows, full, empty, tensor):
    left = (rank - 1) % world_size
    total = travelling = tensor.clone()
    for _ in range(world_size - 1):
        empty[rank].acquire()
        windows[rank].write(travelling)
        full[rank].release()
        full[left].acquire()
        travelling = windows[left].read().clone()
        empty[left].release()
        total += travelling
        travelling = total
    return total
