"""The built pages: all there, complete in themselves, and every link leads somewhere."""

from __future__ import annotations

import re
from copy import copy
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlparse

import build_book
import pytest
from bs4 import BeautifulSoup

ATTRIBUTES = ("src", "srcset", "poster", "data", "background")
OTHER_HOST = re.compile(r"^\s*(https?:)?//", re.I)


@cache
def soup(file: Path) -> BeautifulSoup:
    return BeautifulSoup(file.read_text(), "html.parser")


@cache
def anchors(file: Path) -> frozenset[str]:
    page = soup(file)
    return frozenset(tag["id"] for tag in page.find_all(id=True)) | frozenset(
        tag["name"] for tag in page.find_all("a", attrs={"name": True})
    )


def html_files(site: Path) -> list[Path]:
    return sorted(f for f in site.rglob("*.html") if "_static" not in f.parts)


def loaded_from_elsewhere(markup: BeautifulSoup) -> list[str]:
    """What a browser would fetch from another host when it opens this page."""
    found = []
    for tag in markup.find_all(True):
        for name in ATTRIBUTES:
            if OTHER_HOST.match(tag.get(name, "")):
                found.append(f"<{tag.name} {name}={tag[name]!r}>")
        fetches = tag.name in ("link", "use") and "canonical" not in tag.get("rel", [])
        if fetches and OTHER_HOST.match(tag.get("href", "")):
            found.append(f"<{tag.name} href={tag['href']!r}>")
        css = tag.get("style", "") + (tag.get_text() if tag.name == "style" else "")
        found += css_from_elsewhere(css)
    return found


def css_from_elsewhere(css: str) -> list[str]:
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    named = re.findall(r"url\(\s*['\"]?([^'\")]+)", css)
    named += re.findall(r"@import\s+['\"]([^'\"]+)", css)
    return [f"css {address!r}" for address in named if OTHER_HOST.match(address)]


def test_every_page_is_built(site, page):
    assert (site / f"{page}.html").is_file()


def test_pages_ask_no_other_host(site, page):
    assert loaded_from_elsewhere(soup(site / f"{page}.html")) == []


@pytest.mark.parametrize(
    "markup",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        '<script src="//cdn.example.org/x.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example.org/css">',
        '<link rel="icon" href="http://example.org/i.png">',
        "<style>@import 'https://example.org/a.css';</style>",
        '<p style="background: url( https://example.org/a.png )"></p>',
        '<img srcset="https://example.org/a.png 2x" src="a.png">',
    ],
)
def test_a_request_to_another_host_would_be_seen(markup):
    assert loaded_from_elsewhere(BeautifulSoup(markup, "html.parser"))


def test_style_sheets_ask_no_other_host(site):
    found = {}
    for file in site.rglob("*.css"):
        if hits := css_from_elsewhere(file.read_text(errors="replace")):
            found[str(file.relative_to(site))] = hits
    assert found == {}


def test_every_internal_link_resolves(site):
    broken = []
    for file in html_files(site):
        for tag in soup(file).find_all(["a", "link", "img", "script"]):
            address = tag.get("href") or tag.get("src") or ""
            parts = urlparse(address)
            if parts.scheme or parts.netloc or not address:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if not target.is_file():
                broken.append(f"{file.relative_to(site)} -> {address}: no such file")
                continue
            place = parts.fragment if tag.name == "a" and target.suffix == ".html" else ""
            if place and unquote(place) not in anchors(target):
                broken.append(f"{file.relative_to(site)} -> {address}: no such place")
    assert broken == []


def test_every_image_is_described(site, page):
    article = soup(site / f"{page}.html").find("article")
    assert [str(image)[:200] for image in article.find_all("img") if not image.get("alt")] == []


def test_the_text_holds_no_raw_markup(site, page):
    article = copy(soup(site / f"{page}.html").find("article"))
    for tag in article.find_all(["pre", "code", "script", "style"]):
        tag.extract()
    text = article.get_text(" ")
    assert not re.search(r"\{[a-z:]+\}`|:::|```|\{\{ ", text)


def test_the_colab_button_points_at_a_notebook_that_exists(site, page):
    button = soup(site / f"{page}.html").find("a", href=re.compile("^https://colab"))
    notebook = site / "notebooks" / f"{page}.ipynb"
    assert (button is not None) == notebook.is_file()
    if button:
        assert button["href"].endswith(f"/blob/gh-pages/notebooks/{page}.ipynb")


def test_a_change_of_what_cells_see_makes_the_book_stale(tmp_path, monkeypatch):
    for name in ("src/minidist", "book", "tools"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("requirements.txt", "pyproject.toml", "_config.yml", "book/_toc.yml"):
        (tmp_path / name).write_text("")
    source, chapter = tmp_path / "src/minidist/mesh.py", tmp_path / "book/intro.md"
    source.write_text("a = 1")
    chapter.write_text("# Hello")
    monkeypatch.setattr(build_book, "ROOT", tmp_path)
    first, whole = build_book.keys(), build_book.whole_key()

    chapter.write_text("# Hello again")
    assert build_book.keys() == first
    assert build_book.whole_key() != whole

    source.write_text("a = 2")
    second = build_book.keys()
    assert second["cells"] != first["cells"] and second["pages"] != first["pages"]

    (tmp_path / "_config.yml").write_text("title: x")
    assert build_book.keys()["cells"] == second["cells"]
    assert build_book.keys()["pages"] != second["pages"]
