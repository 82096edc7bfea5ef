"""Waits for the free place after the write instead of before it."""

import torch

CHECK = "race"
SAYS = "is not free yet"


def shared_memory_ring(rank, world_size, windows, full, empty, tensor):
    left = (rank - 1) % world_size
    total, travelling = tensor.clone(), tensor
    for _ in range(world_size - 1):
        windows[rank].write(travelling)
        full[rank].release()
        empty[rank].acquire()
        full[left].acquire()
        travelling = windows[left].read().clone()
        empty[left].release()
        total += travelling
    return total
