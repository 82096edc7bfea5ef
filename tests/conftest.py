"""What several test folders share: the built book and its pages."""

from __future__ import annotations

from pathlib import Path

import build_book
import notebooks
import pytest
import torch
import yaml

from minidist import run
from minidist.ddp import DistributedDataParallel
from minidist.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
PAGES, NUMBERS = notebooks.page_names(yaml.safe_load((ROOT / "book/_toc.yml").read_text()))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `page` runs for every page of the table of contents."""
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", PAGES)


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built book; `make test` has brought it up to date."""
    if not build_book.is_up_to_date():
        pytest.fail("The built book is not that of these files: run `make book` first.")
    return ROOT / "_build" / "html"


def _train(mesh, cap):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    ddp = DistributedDataParallel(net, bucket_cap_mb=cap, record=mesh.mark)
    for _ in range(4):
        ddp(torch.ones(8, 64)).sum().backward()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def ddp_traces() -> dict[float, Trace]:
    """Four training steps of four layers on two ranks, for each of three bucket caps in MiB."""
    caps = (0.01, 0.04, 1)  # of 16.25 KiB a layer: a bucket for each, for about two, for all
    return {cap: run(_train, 2, cap, process_group="gloo").trace for cap in caps}
