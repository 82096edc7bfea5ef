"""Small models, each awkward for data-parallel training in one way, and their inputs."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def numbers(rank: int, step: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers that differ from rank to rank and from step to step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(shape, generator=generator).to(dtype)


class Mlp(nn.Module):
    """Four layers of 1 KiB weights, so that small caps make several buckets."""

    dtype = torch.float32

    def __init__(self):
        super().__init__()
        layers = [nn.Linear(16, 16) for _ in range(4)]
        self.layers = nn.Sequential(*(m for layer in layers for m in (layer, nn.Tanh())))
        self.to(self.dtype)

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return (numbers(rank, step, 8, 16, dtype=self.dtype),)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class HalfMlp(Mlp):
    dtype = torch.float16


class BrainMlp(Mlp):
    dtype = torch.bfloat16


class DoubleMlp(Mlp):
    dtype = torch.float64


class OutOfOrder(Mlp):
    """Uses its layers in another order than that of their definition."""

    def forward(self, x: Tensor) -> Tensor:
        for index in (4, 0, 6, 2):
            x = self.layers[index](x).tanh()
        return x


class OrderOfRank(Mlp):
    """Uses its layers in another order on each rank: only rank 0's counts for the buckets."""

    def inputs(self, rank: int, step: int) -> tuple[Tensor, list[int]]:
        order = [0, 2, 4, 6]
        return *super().inputs(rank, step), order[rank:] + order[:rank]

    def forward(self, x: Tensor, order: list[int]) -> Tensor:
        for index in order:
            x = self.layers[index](x).tanh()
        return x


class ConvNet(nn.Module):
    """Convolution and BatchNorm: its buffers are float32 and, counting batches, int64."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * 16, 5),
        )

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return (numbers(rank, step, 4, 2, 6, 6),)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class ChannelsLast(ConvNet):
    def __init__(self):
        super().__init__()
        self.to(memory_format=torch.channels_last)

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return (super().inputs(rank, step)[0].contiguous(memory_format=torch.channels_last),)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return (numbers(rank, step, 3, 5, 8),)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class Tied(nn.Module):
    """The table of the words is the last layer's weight, too."""

    def __init__(self):
        super().__init__()
        self.table, self.middle = nn.Embedding(12, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 12, bias=False)
        self.last.weight = self.table.weight

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return ((numbers(rank, step, 9) * 100).long() % 12,)

    def forward(self, words: Tensor) -> Tensor:
        return self.last(self.middle(self.table(words)).tanh())


class Frozen(Mlp):
    """A frozen layer in the middle, and a frozen parameter of a dtype of its own."""

    def __init__(self):
        super().__init__()
        self.layers[2].requires_grad_(False)
        self.scale = nn.Parameter(torch.randn(3, dtype=torch.float64), requires_grad=False)


class UsedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.once, self.twice = nn.Linear(6, 6), nn.Linear(6, 6)

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return (numbers(rank, step, 4, 6),)

    def forward(self, x: Tensor) -> Tensor:
        return self.twice(self.once(self.twice(x).tanh()).tanh())


class Branches(nn.Module):
    """`which` says, for a rank and a step, the branches used: of a, b, c, d."""

    def __init__(self, which):
        super().__init__()
        self.which = which
        self.branches = nn.ModuleDict({name: nn.Linear(6, 6) for name in "abcd"})

    def inputs(self, rank: int, step: int) -> tuple[Tensor, str]:
        return numbers(rank, step, 4, 6), self.which(rank, step)

    def forward(self, x: Tensor, used: str) -> Tensor:
        for name in used:
            x = self.branches[name](x).tanh()
        return x


class OddShapes(nn.Module):
    """Parameters of no element and of no dimension."""

    def __init__(self):
        super().__init__()
        self.empty, self.scale = nn.Parameter(torch.empty(0, 3)), nn.Parameter(torch.randn(()))
        self.nothing = nn.Parameter(torch.empty(0, dtype=torch.float64))
        self.linear = nn.Linear(3, 3)

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return (numbers(rank, step, 4, 3),)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(torch.cat([x, self.empty])) * self.scale
        return x + self.nothing.sum()


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.linear = nn.Linear(5, 5)

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return (numbers(rank, step, 4, 5),)

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * self.turn).abs()


class MixedTypes(nn.Module):
    """Parameters of three dtypes, in turn."""

    def __init__(self):
        super().__init__()
        types = [torch.float32, torch.float64, torch.bfloat16] * 2
        self.layers = nn.ModuleList(nn.Linear(6, 6, dtype=dtype) for dtype in types)

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return (numbers(rank, step, 4, 6),)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype)).tanh()
        return x


class Transposed(nn.Module):
    """One parameter is dense but transposed, one has gaps."""

    def __init__(self):
        super().__init__()
        self.transposed = nn.Parameter(torch.randn(5, 3).t())
        self.gaps = nn.Parameter(torch.randn(5, 6)[:, ::2])

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return (numbers(rank, step, 4, 3),)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.transposed) @ self.gaps


class SparseTable(nn.Module):
    def __init__(self, tables: int = 1):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.tables = nn.ModuleList(nn.Embedding(10, 4, sparse=True) for _ in range(tables))
        self.last = nn.Linear(4, 2)

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return ((numbers(rank, step, 6) * 100).long() % 10,)

    def forward(self, words: Tensor, used: int = 1) -> Tensor:
        for table in self.tables[:used]:
            x = self.last(self.first(table(words)).tanh())
        return x


class Reassigns(nn.Module):
    """Assigns a new tensor to its buffer in every forward."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.randn(4))

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return (numbers(rank, step, 5, 4),)

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.linear(x - self.mean)


class Checkpointed(nn.Module):
    """Computes its middle again in the backward pass; `times` times, with one set of weights."""

    def __init__(self, reentrant: bool, times: int = 1):
        super().__init__()
        self.reentrant, self.times = reentrant, times
        self.first, self.middle, self.last = (nn.Linear(6, 6) for _ in range(3))

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return (numbers(rank, step, 4, 6),)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(self.times):
            x = checkpoint(self._middle, x, use_reentrant=self.reentrant)
        return self.last(x)

    def _middle(self, x: Tensor) -> Tensor:
        return self.middle(x.tanh()).tanh()


@dataclasses.dataclass
class Pair:
    first: Tensor
    others: dict[str, tuple[Tensor, str]]


class TwoHeads(nn.Module):
    """Returns two outputs, in a dict and a tuple beside what is no tensor, or in a dataclass.

    PyTorch's find_unused_parameters does not see into dataclasses when only a part is used.
    """

    def __init__(self, trunk: bool = True, as_dict: bool = False):
        super().__init__()
        self.as_dict = as_dict
        self.trunk = nn.Linear(6, 6) if trunk else None
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def inputs(self, rank: int, step: int) -> tuple[Tensor, ...]:
        return (numbers(rank, step, 4, 6),)

    def forward(self, x: Tensor) -> Pair | dict:
        if self.trunk:
            x = self.trunk(x).tanh()
        first, others = self.one(x), {"second": (self.two(x), "a label")}
        return {"first": first, **others} if self.as_dict else Pair(first, others)
