"""What several test folders share: the built book and its pages."""

from __future__ import annotations

from pathlib import Path

import build_book
import notebooks
import pytest
import yaml

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
