"""The real inputs: scikit-learn's digits, cut into shards; a small net; a ResNet-50 to count on."""

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


class Bottleneck(nn.Module):
    """Three convolutions with BatchNorm beside a shortcut; `width` times 4 channels come out."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.path = nn.Sequential(
            *_conv_norm(channels, width, 1, 1),
            nn.ReLU(),
            *_conv_norm(width, width, 3, stride),
            nn.ReLU(),
            *_conv_norm(width, 4 * width, 1, 1),
        )
        changes = stride != 1 or channels != 4 * width
        self.shortcut = nn.Sequential(*_conv_norm(channels, 4 * width, 1, stride) * changes)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """The network of He et al. (2016) for 1,000 classes: to count on, and to time."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        channels = 64
        for stage, (width, count) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
            for block in range(count):
                blocks.append(Bottleneck(channels, width, 2 if stage and not block else 1))
                channels = 4 * width
        self.stem = nn.Sequential(*_conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(channels, 1000)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.blocks(self.stem(images)).mean(dim=(2, 3)))


def _conv_norm(channels: int, out: int, kernel: int, stride: int) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(out)]
