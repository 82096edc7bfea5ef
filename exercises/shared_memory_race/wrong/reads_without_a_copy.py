"""Frees the place while it still uses the memory of it."""

import torch

CHECK = "sums"
SAYS = "read() gives the window"


def shared_memory_ring(rank, world_size, windows, full, empty, tensor):
    left = (rank - 1) % world_size
    total, travelling = tensor.clone(), tensor
    for _ in range(world_size - 1):
        empty[rank].acquire()
        windows[rank].write(travelling)
        full[rank].release()
        full[left].acquire()
        travelling = windows[left].read()
        empty[left].release()
        total += travelling
    return total
