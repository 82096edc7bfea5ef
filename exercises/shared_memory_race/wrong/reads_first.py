"""Everybody reads before anybody writes."""

import torch

CHECK = "terminates"
SAYS = "no rank can go on"


def shared_memory_ring(rank, world_size, windows, full, empty, tensor):
    left = (rank - 1) % world_size
    total, travelling = tensor.clone(), tensor
    for _ in range(world_size - 1):
        full[left].acquire()
        came = windows[left].read().clone()
        empty[left].release()
        empty[rank].acquire()
        windows[rank].write(travelling)
        full[rank].release()
        travelling = came
        total += travelling
    return total
