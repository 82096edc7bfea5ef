"""What cells show: passages of source."""

from __future__ import annotations

import inspect

import pytest
import torch

from minidist.notebook import passage


def measured(rows):
    # first
    total = 0
    for row in rows:
        total += row
    # second
    return total


def test_a_passage_stops_before_its_stop_and_says_its_line():
    shown = passage(measured, "# first", "# second").data
    assert shown.startswith(
        "```python\n# first\ntotal = 0\nfor row in rows:\n    total += row\n```"
    )
    assert shown.endswith("<small>test_notebook_helpers</small>")  # of no package, so without line


def test_a_passage_of_a_package_says_its_line():
    lines, first = inspect.getsourcelines(torch.nn.Linear.forward)
    shown = passage(torch.nn.Linear.forward, "return").data
    number = first + next(i for i, line in enumerate(lines) if "return" in line)
    assert f"torch.nn.modules.linear, line {number} (torch {torch.__version__})" in shown


def test_a_passage_without_a_stop_goes_to_the_end():
    assert passage(measured, "# second").data.startswith("```python\n# second\nreturn total\n```")


def test_a_passage_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="third"):
        passage(measured, "# third")
    with pytest.raises(ValueError, match="third"):
        passage(measured, "# first", "# third")
