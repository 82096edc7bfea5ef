"""Gives the others a moment before each write: the race becomes rare and stays."""

import time

CHECK = "race"
SAYS = "A pause only makes it rarer"


def shared_memory_ring(rank, world_size, windows, full, empty, tensor):
    left = (rank - 1) % world_size
    total, travelling = tensor.clone(), tensor
    for _ in range(world_size - 1):
        time.sleep(0.001)
        windows[rank].write(travelling)
        full[rank].release()
        full[left].acquire()
        travelling = windows[left].read()
        total += travelling
    return total
