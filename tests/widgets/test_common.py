"""What all widgets share: their colours, and that they ask for nothing."""

from __future__ import annotations

import re

import pytest

from minidist import palette
from minidist.widgets import Explorer, Player, Timeline

WIDGETS = [Player, Explorer, Timeline]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("widget", WIDGETS)
def test_colours_stand_in_for_a_page_without_any(widget, dark):
    css = widget._css
    light, dark_pages, dark_system = re.findall(r"\.minidist-widget \{( --w-[^}]*)\}", css)
    assert dark_pages == dark_system != light
    found = dict(re.findall(r"--w-([\w-]+): var\(--\1, (#\w{6})\);", dark_pages if dark else light))
    assert {f"--{k}": v for k, v in found.items()} == palette.css_variables(dark)


@pytest.mark.parametrize("widget", WIDGETS)
def test_every_colour_that_is_used_is_there(widget):
    known = {name[2:] for name in palette.css_variables()}
    used = set(re.findall(r"var\(--w-([\w-]+)\)", widget._esm + widget._css))
    assert {"paper", "ink"} <= used <= known


@pytest.mark.parametrize("widget", WIDGETS)
def test_the_view_asks_for_nothing(widget):
    text = (widget._esm + widget._css).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|url\(|@import|\bimport\b|fetch\(", text)
    assert not re.search(r"\bid[=:]|getElementById", text)


@pytest.mark.parametrize("widget", WIDGETS)
def test_names_are_declared_once(widget):
    """The shared code and the widget's own are one module: a second const would be an error."""
    names = re.findall(r"^(?:const|let|function) (\w+)", widget._esm, re.M)
    assert len(names) == len(set(names))
