"""Says that the window is full before it has written."""

import torch

CHECK = "race"
SAYS = "before it is written"


def shared_memory_ring(rank, world_size, windows, full, empty, tensor):
    left = (rank - 1) % world_size
    total, travelling = tensor.clone(), tensor
    for _ in range(world_size - 1):
        empty[rank].acquire()
        full[rank].release()
        windows[rank].write(travelling)
        full[left].acquire()
        travelling = windows[left].read().clone()
        empty[left].release()
        total += travelling
    return total
