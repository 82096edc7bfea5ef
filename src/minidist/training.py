"""Train the digits net on any number of ranks: what `python -m minidist train` runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from minidist.data import DigitsNet, digits_shard
from minidist.ddp import DistributedDataParallel
from minidist.launch import run
from minidist.mesh import Mesh

DDPS = {"ours": DistributedDataParallel, "torch": TorchDDP}
LEARNED = 0.9  # accuracy on digits never seen in training; guessing gives 0.1
TEST_DIGITS = 360  # of 1797
BAR = 20  # characters


@dataclass(frozen=True)
class Epoch:
    """After an epoch: the mean loss of its batches, the accuracy on the test digits, seconds."""

    loss: float
    accuracy: float
    seconds: float


def train(
    backend: str, world_size: int, epochs: int, batch_size: int = 64, ddp: str = "torch"
) -> list[Epoch]:
    """Train with a DDP on `world_size` ranks of this machine, and say how it goes.

    backend: "minidist" or "gloo" (on the CPU), "nccl" (rank r on GPU r). ddp: "ours" or "torch".
    batch_size: of all ranks together, so that the result hardly depends on how many they are.
    The seed is fixed: two backends with the same order of additions end with the same bits.
    Raises RuntimeError if there are fewer GPUs than ranks with "nccl".
    """
    if backend == "nccl" and torch.cuda.device_count() < world_size:
        gpus = torch.cuda.device_count()
        raise RuntimeError(
            f"nccl needs a GPU per rank, and there are {gpus} for {world_size} ranks: use minidist "
            "or gloo, or fewer ranks."
        )
    on_each_rank = run(
        _train,
        world_size,
        backend,
        epochs,
        batch_size,
        ddp,
        process_group=backend,
        timeout=60.0 + 60.0 * epochs,
    )
    return on_each_rank.results[0]


def _train(mesh: Mesh, backend: str, epochs: int, batch_size: int, ddp: str) -> list[Epoch]:
    device = torch.device("cuda", mesh.rank) if backend == "nccl" else torch.device("cpu")
    images, labels = (t.to(device) for t in digits_shard(0, 1))
    mixed = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, rest = mixed[:TEST_DIGITS], mixed[TEST_DIGITS:]
    mine = rest[mesh.rank :: mesh.world_size]
    batch = max(1, batch_size // mesh.world_size)
    steps = len(rest) // mesh.world_size // batch  # the same on every rank, or DDP would hang

    torch.manual_seed(0)
    net = DDPS[ddp](DigitsNet().to(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    history = []
    for epoch in range(epochs):
        start = mesh.link.now()
        order = mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(epoch))]
        total = torch.zeros(1, device=device)
        net.train()
        for chosen in order[: steps * batch].split(batch):
            optimizer.zero_grad()
            loss = cross_entropy(net(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if mesh.rank == 0:
            accuracy = _accuracy(net.module, images[test], labels[test])
            mean = total.item() / (steps * mesh.world_size)
            history.append(Epoch(mean, accuracy, mesh.link.now() - start))
            done = BAR * (epoch + 1) // epochs
            print(
                f"epoch {epoch + 1:{len(str(epochs))}} of {epochs}  [{'#' * done:.<{BAR}}]  "
                f"loss {mean:.4f}  accuracy {accuracy:6.1%}  {history[-1].seconds:.2f} s",
                flush=True,
            )
    dist.barrier()  # rank 0 is still counting when the others are through
    if backend == "nccl":
        dist.destroy_process_group()  # gloo's, freed while its threads end, can wait for ever
    return history


@torch.no_grad()
def _accuracy(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    # The net and not its DDP wrapper, whose forward would wait for the other ranks.
    net.eval()
    return (net(images).argmax(dim=1) == labels).float().mean().item()
