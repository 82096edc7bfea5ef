"""Frees its own place instead of the one that it has read."""

import torch

CHECK = "race"
SAYS = "is not free yet"


def shared_memory_ring(rank, world_size, windows, full, empty, tensor):
    left = (rank - 1) % world_size
    total, travelling = tensor.clone(), tensor
    for _ in range(world_size - 1):
        empty[rank].acquire()
        windows[rank].write(travelling)
        full[rank].release()
        full[left].acquire()
        travelling = windows[left].read().clone()
        empty[rank].release()
        total += travelling
    return total
