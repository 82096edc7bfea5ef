"""The networks that the chapters count on."""

from __future__ import annotations

import torch
from torch import nn

from minidist.data import ResNet50


def test_resnet50_has_the_published_numbers():
    with torch.device("meta"):
        net = ResNet50()
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert sum(p.numel() for p in net.parameters()) == 25_557_032
    assert len(convolutions) == 53 and sum(m.kernel_size == (1, 1) for m in convolutions) == 36
    assert len(list(net.buffers())) == 3 * 53
    assert net(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)
