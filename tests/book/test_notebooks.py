"""Every chapter as a plain notebook: nothing that only Sphinx understands, and it runs."""

from __future__ import annotations

import re
import textwrap

import nbformat
import notebooks
import pytest
from bs4 import BeautifulSoup
from nbclient import NotebookClient

RAW = re.compile(
    r"\{[a-zA-Z][\w:.+-]*\}`"  # a role
    r"|^\s*(`{3,}|~{3,}|:{3,})\{"  # a directive
    r"|^:{3,}|^\([\w:.-]+\)=\s*$|^\+\+\+|\{\{ ",
    re.M,
)


@pytest.fixture(scope="module")
def course():
    return notebooks.read_course()


def written(site, page):
    file = site / "notebooks" / f"{page}.ipynb"
    if not file.is_file():
        assert "{code-cell}" not in notebooks.source_of(page), "a page with cells has a notebook"
        return None
    return nbformat.read(file, as_version=4)


def test_only_plain_markdown_is_left(site, page):
    if notebook := written(site, page):
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                assert not RAW.search(cell.source), cell.source


@pytest.mark.parametrize(
    "raw", ["see {eq}`a`", "```{note}\nx\n```", "x\n:::{tip}", ":::", "(a-label)=", "+++"]
)
def test_raw_markup_would_be_seen(raw):
    assert RAW.search(raw)


def test_outputs_are_stripped_and_the_first_cell_installs(site, page):
    if notebook := written(site, page):
        nbformat.validate(notebook)
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert all(not cell.outputs and cell.execution_count is None for cell in cells)
        assert notebook.cells[0] is cells[0]
        address = notebooks.read_course().repository
        assert f"minidist @ git+{address}.git" in cells[0].source
        assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


def test_every_code_cell_is_there(site, page):
    if notebook := written(site, page):
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert len(cells) - 1 == len(re.findall(r"\{code-cell\}", notebooks.source_of(page)))


def test_numbers_are_those_of_the_book(site, course):
    for name, label in course.labels.items():
        html = BeautifulSoup((site / f"{label.page}.html").read_text(), "html.parser")
        if label.kind == "equation":
            there = html.find(id=f"equation-{name}").find(class_="eqno").get_text()
            assert there.startswith(f"({label.number})"), name
        if label.kind == "figure":
            figure = html.find("figure", id=name.replace("_", "-"))
            there = figure.find(class_="caption-number").get_text()
            assert there.strip() == f"Fig. {label.number}", name
        if label.kind in ("exercise", "proof"):
            there = html.find(id=name).find(class_="caption-number").get_text()
            assert there.split()[-1] == label.number, name


def test_a_chapter_runs_from_top_to_bottom(site, tmp_path):
    # All chapters run when the book is built; this proves that the notebooks are complete.
    course = notebooks.read_course()
    notebook = next(nb for nb in (written(site, page) for page in course.pages[1:]) if nb)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    assert any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")


@pytest.fixture
def page_writer():
    course = notebooks.Course(["part/one", "part/two"], {}, "https://github.com/example/x")
    course.titles = {"part/one": "One", "part/two": "Two"}
    course.labels = {
        "here": notebooks.Label("part/one", "heading", "Here"),
        "there": notebooks.Label("part/two", "heading", "There"),
        "eq-a": notebooks.Label("part/one", "equation", "", "1.1"),
        "fig-a": notebooks.Label("part/two", "figure", "", "2.3"),
        "ex-a": notebooks.Label("part/one", "exercise", "Half", "1"),
    }
    course.references = {"p2009": ("Patarasuk and Yuan, 2009", "P. Patarasuk and X. Yuan. Ring.")}
    return notebooks.Page(course, "part/one")


@pytest.mark.parametrize(
    ("myst", "plain"),
    [
        ("{term}`rank` and {term}`ranks <rank>`", "rank and ranks"),
        ("see {ref}`here`", "see Here"),
        ("see {ref}`there`", "see [There](../part/two.ipynb)"),
        ("see {ref}`that <there>`", "see [that](../part/two.ipynb)"),
        ("by {eq}`eq-a`", "by (1.1)"),
        ("in {numref}`fig-a`", "in [Fig. 2.3](../part/two.ipynb)"),
        ("in {numref}`figure %s <fig-a>`", "in [figure 2.3](../part/two.ipynb)"),
        ("{doc}`two`", "[Two](../part/two.ipynb)"),
        ("[](two.md) and [x](two.md#part)", "[Two](../part/two.ipynb) and [x](../part/two.ipynb)"),
        ("[](#there)", "[There](../part/two.ipynb)"),
        ("[out](https://example.org)", "[out](https://example.org)"),
        ("({cite}`p2009`)", "((Patarasuk and Yuan, 2009))"),
        ("{cite:t}`p2009` say", "Patarasuk and Yuan, 2009 say"),
        ("`{eq}` stays, {math}`x^2`", "`{eq}` stays, $x^2$"),
        ("(here)=\n% a comment\n## Here", "## Here"),
        ("$$\nx\n$$ (eq-a)", "$$\nx\n\\tag{1.1}$$"),
        ("```{math}\n:label: eq-a\nx\n```", "$$\nx \\tag{1.1}\n$$"),
        ("```{note}\nBe *kind*.\n```", "> **Note**\n>\n> Be *kind*."),
        (":::{admonition} Look {eq}`eq-a`\nx\n:::", "> **Look (1.1)**\n>\n> x"),
        (
            "```{hint}\n:class: dropdown\nx\n```",
            "<details>\n<summary>Hint</summary>\n\nx\n\n</details>",
        ),
        (
            "```{solution} ex-a\nx\n```",
            "<details>\n<summary>Solution</summary>\n\nx\n\n</details>",
        ),
        ("```{exercise} Half\n:label: ex-a\nx\n```", "> **Exercise 1: Half**\n>\n> x"),
        ("```{code-block} python\nx = {1}\n```", "```python\nx = {1}\n```"),
        ("```python\n{eq}`no`\n```", "```python\n{eq}`no`\n```"),
        ("```{glossary}\nrank\n  A process.\n```", "- **rank**: A process."),
        ("::::{grid} 2\n:::{card} A\nx\n+++\ny\n:::\n::::", "**A**\n\nx\ny"),
        (
            "```{list-table}\n:header-rows: 1\n* - a\n  - b\n* - 1\n  - {eq}`eq-a`\n```",
            "| a | b |\n| --- | --- |\n| 1 | (1.1) |",
        ),
    ],
)
def test_directives_and_roles_become_markdown(page_writer, myst, plain):
    assert page_writer.markdown(textwrap.dedent(myst).splitlines()) == plain


def test_a_quiz_folds_its_explanations(page_writer):
    shown = page_writer.markdown(
        ["```{quiz} Who?", "- [x] `Rank` 0 :: Yes.", "- [ ] All :: No.", "```"]
    )
    assert "**Quiz.** Who?" in shown
    assert "<summary><code>Rank</code> 0</summary>\n\nRight. Yes." in shown
    assert "<summary>All</summary>\n\nNot quite. No." in shown


@pytest.mark.parametrize(
    "myst", ["```{mermaid}\nx\n```", "{fancy}`x`", "{ref}`nowhere`", "{cite}`nobody`", "```{note}"]
)
def test_what_a_notebook_cannot_show_stops_the_build(page_writer, myst):
    with pytest.raises(ValueError):
        page_writer.markdown(myst.splitlines())
