"""The real input: scikit-learn's digits, cut into shards, and a small net with BatchNorm."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def digits_shard(rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """Every world_size-th digit from `rank` on: images (n, 1, 8, 8) in 0..1, labels (n,)."""
    from sklearn.datasets import load_digits  # a second to import: not on every rank of every run

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    return images[rank::world_size], labels[rank::world_size]


class DigitsNet(nn.Module):
    """Two convolutions with BatchNorm and a linear layer: about ten thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(32)
        self.linear = nn.Linear(32 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(images)))
        x = nn.functional.max_pool2d(x, 2)
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.linear(x.flatten(1))


def digits_gradient(rank: int, world_size: int, batch_size: int = 64) -> Tensor:
    """The gradient of one batch of this rank's shard, flattened: what DDP would average.

    Every rank starts from the same parameters (the seed is fixed) and sees its own digits.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = DigitsNet()
    images, labels = digits_shard(rank, world_size)
    cross_entropy(net(images[:batch_size]), labels[:batch_size]).backward()
    return torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None])
