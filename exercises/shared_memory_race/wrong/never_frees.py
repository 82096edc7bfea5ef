"""Waits for a free place, and never frees one: the second message waits for ever."""

import torch

CHECK = "terminates"
SAYS = "empty["


def shared_memory_ring(rank, world_size, windows, full, empty, tensor):
    left = (rank - 1) % world_size
    total, travelling = tensor.clone(), tensor
    for _ in range(world_size - 1):
        empty[rank].acquire()
        windows[rank].write(travelling)
        full[rank].release()
        full[left].acquire()
        travelling = windows[left].read().clone()
        total += travelling
    return total
