"""Says that the place is free, and then reads it."""

import torch

CHECK = "race"
SAYS = "before rank"


def shared_memory_ring(rank, world_size, windows, full, empty, tensor):
    left = (rank - 1) % world_size
    total, travelling = tensor.clone(), tensor
    for _ in range(world_size - 1):
        empty[rank].acquire()
        windows[rank].write(travelling)
        full[rank].release()
        full[left].acquire()
        empty[left].release()
        travelling = windows[left].read().clone()
        total += travelling
    return total
