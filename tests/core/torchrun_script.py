"""What test_process_group starts with torchrun: every case of this world size, on gloo."""

import torch.distributed as dist
from cases import all_cases, bits, expected, run_cases

from minidist.transports.process_group import mesh_from_process_group

dist.init_process_group("gloo")
mesh = mesh_from_process_group()
cases = all_cases(mesh.world_size)
for case, (output, faults) in zip(cases, run_cases(mesh, cases), strict=True):
    assert bits(output) == bits(expected(case, mesh.rank, mesh.world_size)), case
    assert not faults, (case, faults)
print(f"rank {mesh.rank} of {mesh.world_size}: all as expected", flush=True)
mesh.link.close()
dist.destroy_process_group()
