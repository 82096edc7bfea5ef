"""Writes every chapter as a plain notebook: _build/html/notebooks/<page>.ipynb.

Outputs are stripped, the first cell installs the package where it is missing, and everything that
only Sphinx understands becomes ordinary Markdown: admonitions become quotes, quizzes and solutions
<details>, figures images, cross references links to the other notebooks with the same numbers as in
the book. A directive or role that is not known here stops the build, so none slips through raw.
"""

from __future__ import annotations

import base64
import mimetypes
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import yaml
from pybtex.database import parse_file
from pybtex.plugin import find_plugin

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
OUT = ROOT / "_build" / "html" / "notebooks"
sys.path.insert(0, str(BOOK / "_ext"))

from quiz import parse_quiz  # noqa: E402 (a local Sphinx extension, not a package)

FENCE = re.compile(r"^(\s*)(`{3,}|~{3,}|:{3,})\{([\w:.-]+)\}[ \t]*(.*)$")
PLAIN_FENCE = re.compile(r"^\s*(`{3,}|~{3,})(.*)$")
OPTION_LINE = re.compile(r"^:([\w-]+):[ \t]*(.*)$")
TARGET = re.compile(r"^\(([^()\s]+)\)=\s*$")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*$")
MATH_LABEL = re.compile(r"^(.*?)\$\$\s*\(([\w:.-]+)\)\s*$")
# `code`, or {role}`content`: found together, left to right, so neither is seen in the other
SPAN = re.compile(r"(?:\{([\w:.+-]+)\})?(?<!`)(`+)(?!`)(.+?)(?<!`)\2(?!`)", re.S)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
ROLE_WITH_TARGET = re.compile(r"^(.*?)\s*<([^<>]+)>$", re.S)

QUOTED = {
    "note": "Note",
    "tip": "Tip",
    "hint": "Hint",
    "important": "Important",
    "warning": "Warning",
    "caution": "Caution",
    "attention": "Attention",
    "danger": "Danger",
    "error": "Error",
    "seealso": "See also",
}


@dataclass
class Label:
    """What a cross reference can point at: a page's heading, equation, figure, exercise."""

    page: str
    kind: str  # "heading", "equation", "figure", "table", "exercise", "proof"
    title: str
    number: str = ""


@dataclass
class Course:
    """All pages in reading order, with the number of each chapter and every label."""

    pages: list[str]
    numbers: dict[str, str]
    repository: str
    labels: dict[str, Label] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    references: dict[str, tuple[str, str]] = field(default_factory=dict)  # key -> short, full


def page_names(toc: dict) -> tuple[list[str], dict[str, str]]:
    """Every page of the table of contents, and the numbers of the numbered ones."""
    pages, numbers = [toc["root"]], {}
    chapter = 0
    for part in toc.get("parts", [toc]):
        for entry in part.get("chapters", []):
            pages.append(entry["file"])
            if part.get("numbered"):
                chapter += 1
                numbers[entry["file"]] = str(chapter)
            for section in entry.get("sections", []):
                pages.append(section["file"])
    return pages, numbers


def read_course() -> Course:
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    pages, numbers = page_names(yaml.safe_load((BOOK / "_toc.yml").read_text()))
    course = Course(pages, numbers, config["repository"]["url"])
    course.references = read_references(BOOK / "references.bib")
    for page in pages:
        collect_labels(course, page)
    return course


def read_references(file: Path) -> dict[str, tuple[str, str]]:
    data = parse_file(str(file))
    style = find_plugin("pybtex.style.formatting", "unsrt")()
    backend = find_plugin("pybtex.backends", "markdown")()
    references = {}
    for entry in style.format_entries(data.entries.values()):
        source = data.entries[entry.key]
        names = [" ".join(person.last_names) for person in source.persons.get("author", [])]
        if len(names) > 2:
            names = [f"{names[0]} et al."]
        short = " and ".join(names) or source.fields.get("title", entry.key)
        year = source.fields.get("year")
        full = re.sub(r"\\([^\w\s])", r"\1", entry.text.render(backend))
        references[entry.key] = (f"{short}, {year}" if year else short, full)
    return references


# Reading


@dataclass
class Directive:
    name: str
    argument: str
    options: dict
    body: list[str]


def source_of(page: str) -> str:
    return (BOOK / f"{page}.md").read_text()


def without_front_matter(text: str) -> str:
    if text.startswith("---\n"):
        return text.split("\n---\n", 1)[1]
    return text


def located_blocks(lines: list[str]):
    """Yield (kind, block, first line, line after the last), in order.

    The kinds: "directive" (a Directive), "code" (lines of a plain fence), "text" (lines).
    """
    start = i = 0
    while i < len(lines):
        directive, plain = FENCE.match(lines[i]), PLAIN_FENCE.match(lines[i])
        if not directive and not plain:
            i += 1
            continue
        end = closing(lines, i, directive[2] if directive else plain[1])
        if start < i:
            yield "text", lines[start:i], start, i
        if directive:
            yield "directive", read_directive(directive, lines[i + 1 : end]), i, end + 1
        else:
            yield "code", lines[i : end + 1], i, end + 1
        start = i = end + 1
    if start < len(lines):
        yield "text", lines[start:], start, len(lines)


def blocks(lines: list[str]):
    for kind, block, _, _ in located_blocks(lines):
        yield kind, block


def closing(lines: list[str], start: int, fence: str) -> int:
    for i in range(start + 1, len(lines)):
        line = lines[i].strip()
        if len(line) >= len(fence) and set(line) == {fence[0]}:
            return i
    raise ValueError(f"the fence {lines[start].strip()!r} is never closed")


def read_directive(match: re.Match, body: list[str]) -> Directive:
    indent = len(match[1])
    body = [line[indent:] if line[:indent].isspace() else line for line in body]
    options: dict = {}
    if body and body[0].strip() == "---":
        end = next(i for i in range(1, len(body)) if body[i].strip() == "---")
        options = yaml.safe_load("\n".join(body[1:end])) or {}
        body = body[end + 1 :]
    while body and (option := OPTION_LINE.match(body[0])):
        options[option[1]] = option[2].strip()
        body = body[1:]
    while body and not body[0].strip():
        body = body[1:]
    return Directive(match[3], match[4].strip(), options, body)


def cell_figure(metadata: dict) -> dict:
    """The caption and name of a code cell whose output is a numbered figure, or {}."""
    return metadata.get("mystnb", {}).get("figure", {})


def collect_labels(course: Course, page: str) -> None:
    """Find the page's labels and number its equations, figures and tables as the book does."""
    counters: dict[str, int] = {}
    chapter = course.numbers.get(page, "")

    def numbered(kind: str) -> str:
        counters[kind] = counters.get(kind, 0) + 1
        return f"{chapter}.{counters[kind]}" if chapter else str(counters[kind])

    def walk(lines: list[str]) -> None:
        waiting: list[str] = []
        for kind, block in blocks(lines):
            if kind == "text":
                for line in block:
                    if target := TARGET.match(line):
                        waiting.append(target[1])
                    elif heading := HEADING.match(line):
                        title = heading[2]
                        course.titles.setdefault(page, title)
                        for name in waiting:
                            course.labels[name] = Label(page, "heading", title)
                        waiting = []
                    elif equation := MATH_LABEL.match(line):
                        name = equation[2]
                        course.labels[name] = Label(page, "equation", "", numbered("equation"))
            elif kind == "directive":
                label_directive(block, waiting)
                waiting = []

    def label_directive(block: Directive, waiting: list[str]) -> None:
        base = block.name.split(":")[0]
        name = block.options.get("label") or block.options.get("name")
        names = [*waiting, *([name] if name else [])]
        kind, number = "heading", ""
        if base == "code-cell" and (shown := cell_figure(block.options)):
            kind, number = "figure", numbered("figure")
            names = [shown["name"]] if "name" in shown else []
        elif base == "math" and name:
            kind, number = "equation", numbered("equation")
        elif base == "figure":
            kind, number = "figure", numbered("figure")
        elif base in ("table", "list-table") and block.argument:
            kind, number = "table", numbered("table")
        elif base in ("exercise", "exercise-start"):
            kind, number = "exercise", numbered("exercise")
        elif base == "prf":
            kind, number = "proof", numbered(block.name)
        for each in names:
            course.labels[each] = Label(page, kind, block.argument, number)
        if base not in ("code-cell", "code-block", "code", "quiz", "math"):
            walk(block.body)

    walk(without_front_matter(source_of(page)).splitlines())


# Writing


class Page:
    """Turns one page's MyST into plain Markdown."""

    def __init__(self, course: Course, page: str):
        self.course, self.page = course, page
        self.cited: list[str] = []

    def markdown(self, lines: list[str]) -> str:
        parts = []
        for kind, block in blocks(lines):
            if kind == "code":
                parts.append("\n".join(block))
            elif kind == "directive":
                parts.append("\n" + self.directive(block) + "\n")
            else:
                parts.append(self.text(block))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip("\n")

    def text(self, lines: list[str]) -> str:
        kept = []
        for line in lines:
            comment = line.startswith("% ") or line.strip() == "%"
            if TARGET.match(line) or comment or line.rstrip() in ("+++", "^^^"):
                continue
            if equation := MATH_LABEL.match(line):
                number = self.course.labels[equation[2]].number
                line = f"{equation[1]}\\tag{{{number}}}$$"
            if kept and line.startswith(": ") and kept[-1].strip():
                kept[-1] = f"**{kept[-1].strip()}**"  # a definition list
                line = "\n" + line[2:]
            kept.append(line)
        return self.inline("\n".join(kept))

    def inline(self, text: str) -> str:
        hidden: list[str] = []

        def hide(shown: str) -> str:
            hidden.append(shown)
            return f"\0{len(hidden) - 1}\0"

        text = SPAN.sub(lambda m: hide(self.role(m[1], m[3].strip()) if m[1] else m[0]), text)
        text = LINK.sub(self.link, text)
        text = re.sub(r"^\[\^([\w-]+)\]:", r"<sup>[\1]</sup>", text, flags=re.M)
        text = re.sub(r"\[\^([\w-]+)\]", r"<sup>[\1]</sup>", text)
        while "\0" in text:
            text = re.sub("\0(\\d+)\0", lambda m: hidden[int(m[1])], text)
        return text

    # Cross references

    def href(self, page: str) -> str:
        if page == self.page:
            return "#"
        up = "../" * self.page.count("/")
        return f"{up}{page}.ipynb"

    def reference(self, label: str, shown: str = "", prefix: str = "") -> str:
        if label not in self.course.labels:
            raise ValueError(f"{self.page}.md refers to {label!r}, which no page defines")
        target = self.course.labels[label]
        shown = shown or f"{prefix}{target.number}" or target.title
        shown = self.inline(shown)
        return shown if target.page == self.page else f"[{shown}]({self.href(target.page)})"

    def link(self, match: re.Match) -> str:
        shown, target = match[1], match[2]
        if re.match(r"^(https?|mailto):", target):
            return match[0]
        name = target.removeprefix("#")
        if name in self.course.labels:
            label = self.course.labels[name]
            return self.reference(name, shown or label.title or label.number)
        file, _, _ = target.partition("#")
        page = ""
        if file:
            path = (BOOK / self.page).parent / file
            page = path.resolve().relative_to(BOOK).as_posix().removesuffix(".md")
        if page in self.course.pages:
            return f"[{shown or self.course.titles.get(page, page)}]({self.href(page)})"
        if not file:  # a heading of this page
            return shown
        return f"{shown or file}"

    def role(self, name: str, content: str) -> str:
        text, target = content, content
        if with_target := ROLE_WITH_TARGET.match(content):
            text, target = with_target[1], with_target[2]
        has_text = text != target
        kind = name.split(":")[-1] if name.startswith("cite") or name == "prf:ref" else name
        if name.startswith("cite"):
            return self.citation(kind, content)
        if name == "term":
            return text
        if name in ("ref", "std:ref", "prf:ref"):
            label = self.course.labels.get(target)
            plain = "" if label is None else self.label_text(label)
            return self.reference(target, text if has_text else plain)
        if name == "numref":
            label = self.course.labels.get(target)
            number = label.number if label else ""
            shown = text.replace("%s", number).replace("{number}", number) if has_text else ""
            return self.reference(target, shown, "" if label is None else self.kind_name(label))
        if name in ("eq", "math:numref"):
            number = self.course.labels[target].number if target in self.course.labels else ""
            return self.reference(target, f"({number})")
        if name == "doc":
            page = ((BOOK / self.page).parent / target.removesuffix(".md")).resolve()
            page = page.relative_to(BOOK).as_posix()
            if target.startswith("/"):
                page = target.strip("/").removesuffix(".md")
            shown = text if has_text else self.course.titles.get(page, page)
            return f"[{shown}]({self.href(page)})"
        simple: dict[str, Callable[[str], str]] = {
            "math": lambda c: f"${c}$",
            "abbr": lambda c: ROLE_WITH_TARGET.sub(r"\1", re.sub(r"\s*\(.*\)$", "", c)),
            "kbd": lambda c: f"<kbd>{c}</kbd>",
            "code": lambda c: f"`{c}`",
            "sub": lambda c: f"<sub>{c}</sub>",
            "sup": lambda c: f"<sup>{c}</sup>",
            "download": lambda _: text,
            "guilabel": lambda c: f"**{c}**",
            "command": lambda c: f"`{c}`",
            "file": lambda c: f"`{c}`",
        }
        if name not in simple:
            raise ValueError(f"{self.page}.md: notebooks cannot show the role {{{name}}}")
        return simple[name](content)

    def label_text(self, label: Label) -> str:
        return label.title or f"{self.kind_name(label)}{label.number}"

    @staticmethod
    def kind_name(label: Label) -> str:
        names = {"figure": "Fig. ", "table": "Table ", "exercise": "Exercise "}
        return names.get(label.kind, "")

    def citation(self, kind: str, keys: str) -> str:
        shown = []
        for key in (k.strip() for k in keys.split(",")):
            if key not in self.course.references:
                raise ValueError(f"{self.page}.md cites {key!r}, which references.bib lacks")
            if key not in self.cited:
                self.cited.append(key)
            shown.append(self.course.references[key][0])
        joined = "; ".join(shown)
        return joined if kind == "t" else f"({joined})"

    # Directives

    def directive(self, d: Directive) -> str:
        body = "" if d.name in VERBATIM else self.markdown(d.body)
        folded = {"dropdown", "toggle"} & set(d.options.get("class", "").split())
        if d.name in QUOTED:
            title, inside = QUOTED[d.name], self.markdown([d.argument, *d.body])
            return details(title, inside) if folded else quote(title, inside)
        if d.name in ("admonition", "topic"):
            title = self.inline(d.argument)
            return details(title, body) if folded else quote(title, body)
        if d.name in ("margin", "sidebar"):
            return quote(self.inline(d.argument), body)
        if d.name in ("dropdown", "toggle"):
            return details(self.inline(d.argument) or "Show", body)
        if d.name in ("exercise", "exercise-start"):
            name = d.options.get("label")
            number = self.course.labels[name].number if name else ""
            title = f"Exercise {number}".strip() + (f": {d.argument}" if d.argument else "")
            return quote(self.inline(title), body)
        if d.name in ("solution", "solution-start"):
            return details("Solution", body)
        if d.name.startswith("prf:"):
            title = d.name.removeprefix("prf:").capitalize()
            name = d.options.get("label")
            title += f" {self.course.labels[name].number}" if name else ""
            title += f" ({self.inline(d.argument)})" if d.argument else ""
            return quote(title, body)
        if d.name == "quiz":
            return self.quiz(d)
        if d.name == "math":
            name = d.options.get("label")
            tag = f" \\tag{{{self.course.labels[name].number}}}" if name else ""
            return "$$\n" + "\n".join(filter(None, [d.argument, *d.body])) + tag + "\n$$"
        if d.name in ("figure", "image"):
            return self.figure(d, body)
        if d.name in ("code-block", "code", "sourcecode"):
            return "\n".join([f"```{d.argument}", *d.body, "```"])
        if d.name == "literalinclude":
            path = (BOOK / self.page).parent / d.argument
            language = d.options.get("language", "python")
            return f"```{language}\n{path.read_text().rstrip()}\n```"
        if d.name == "glossary":
            return self.glossary(d.body)
        if d.name == "list-table":
            return self.list_table(d)
        if d.name == "table":
            return (f"**{self.inline(d.argument)}**\n\n" if d.argument else "") + body
        if d.name == "bibliography":
            everything = ":all:" in " ".join([d.argument, *d.options]) or "all" in d.options
            keys = self.course.references if everything else self.cited
            return "\n".join("- " + " ".join(self.course.references[k][1].split()) for k in keys)
        if d.name in ("epigraph", "pull-quote"):
            return quote("", body)
        if d.name in (
            "tab-set",
            "grid",
            "card-header",
            "card-footer",
            "div",
            "container",
            "card-carousel",
        ):
            return body
        if d.name in ("tab-item", "card", "grid-item-card", "grid-item"):
            title = self.inline(d.argument)
            link = d.options.get("link")
            if link and d.options.get("link-type") == "doc":
                title = self.role("doc", f"{title} <{link}>")
            return (f"**{title}**\n\n" if title else "") + body
        if d.name in ("solution-end", "exercise-end", "tableofcontents", "contents"):
            return ""
        raise ValueError(f"{self.page}.md: notebooks cannot show the directive {{{d.name}}}")

    def quiz(self, d: Directive) -> str:
        question, options = parse_quiz(d.argument, d.body)
        shown = [f"**Quiz.** {self.inline(question)}"]
        for right, option, why in options:
            verdict = "Right." if right else "Not quite."
            shown.append(details(self.inline(option), f"{verdict} {self.inline(why)}"))
        return "\n\n".join(shown)

    def figure(self, d: Directive, caption: str) -> str:
        path = (BOOK / self.page).parent / d.argument
        kind = mimetypes.guess_type(path.name)[0]
        data = base64.b64encode(path.read_bytes()).decode()
        image = f"![{d.options.get('alt', '')}](data:{kind};base64,{data})"
        if d.name == "image" or not caption:
            return image
        return image + "\n\n" + self.caption({"name": d.options.get("name"), "caption": caption})

    def caption(self, figure: dict) -> str:
        name = figure.get("name")
        number = f"Fig. {self.course.labels[name].number}. " if name else ""
        return f"*{number}{self.inline(figure.get('caption', '').strip())}*"

    def glossary(self, lines: list[str]) -> str:
        entries: list[list[str]] = []
        for line in lines:
            if line.strip() and not line[0].isspace():
                entries.append([line.strip()])
            elif entries:
                entries[-1].append(line.strip())
        return "\n".join(
            f"- **{term}**: {self.inline(' '.join(filter(None, words)))}"
            for term, *words in entries
        )

    def list_table(self, d: Directive) -> str:
        rows: list[list[str]] = []
        for line in d.body:
            if line.startswith(("* - ", "- - ")):
                rows.append([line[4:].strip()])
            elif line.startswith("  - "):
                rows[-1].append(line[4:].strip())
            elif line.strip() in ("*", "-"):
                rows.append([])
            elif line.strip() == "-":
                rows[-1].append("")
            elif line.strip():
                rows[-1][-1] += " " + line.strip()
        rows = [[self.inline(cell).replace("|", "\\|") for cell in row] for row in rows]
        head = rows.pop(0) if int(d.options.get("header-rows", 0)) else [""] * len(rows[0])
        lines = [head, ["---"] * len(head), *rows]
        table = "\n".join("| " + " | ".join(row) + " |" for row in lines)
        return (f"**{self.inline(d.argument)}**\n\n" if d.argument else "") + table


VERBATIM = {"code-block", "code", "sourcecode", "math", "quiz", "glossary", "list-table"}


def details(summary: str, body: str) -> str:
    return f"<details>\n<summary>{html_inline(summary)}</summary>\n\n{body}\n\n</details>"


def html_inline(text: str) -> str:
    """A summary is HTML, where Markdown is not read: say code and emphasis in tags."""
    text = re.sub(r"`+([^`]+)`+", r"<code>\1</code>", text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"(?<!\w)\*(\S.*?)\*(?!\w)", r"<em>\1</em>", text)


def quote(title: str, body: str) -> str:
    lines = ([f"**{title}**", ""] if title else []) + body.splitlines()
    return "\n".join(f"> {line}".rstrip() for line in lines)


def install_cell(repository: str):
    package = f"minidist @ git+{repository.removesuffix('.git')}.git"
    return nbformat.v4.new_code_cell(
        "# Run this cell first. It installs the course's package if this Python lacks it, and\n"
        "# leaves an installed PyTorch as it is.\n"
        "import importlib.util\n"
        "import subprocess\n"
        "import sys\n"
        "\n"
        'if importlib.util.find_spec("minidist") is None:\n'
        f'    package = "{package}"\n'
        '    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)',
        metadata={"tags": ["install"]},
    )


def cells_of(page: str) -> list[Directive | list[str]]:
    """The page's code cells and, between them, its Markdown (as lines), in order."""
    cells: list[Directive | list[str]] = [[]]
    lines = without_front_matter(source_of(page)).splitlines()
    for kind, block, first, last in located_blocks(lines):
        if kind == "directive" and block.name == "code-cell":
            cells += [block, []]
        else:
            for line in lines[first:last]:
                if kind == "text" and line.rstrip() == "+++":
                    cells.append([])
                else:
                    cells[-1].append(line)
    return cells


def convert(course: Course, page: str):
    """The page as a notebook, or None if it has no code to run."""
    source = cells_of(page)
    if not any(isinstance(cell, Directive) for cell in source):
        return None
    writer = Page(course, page)
    cells = [install_cell(course.repository)]
    for cell in source:
        if isinstance(cell, Directive):
            cells.append(code_cell(cell))
            if figure := cell_figure(cell.options):
                cells.append(nbformat.v4.new_markdown_cell(writer.caption(figure)))
        elif shown := writer.markdown(cell):
            cells.append(nbformat.v4.new_markdown_cell(shown))
    for i, cell in enumerate(cells):
        cell["id"] = f"{page.split('/')[-1].replace('_', '-')[:48]}-{i}"  # the same at every build
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    nbformat.validate(notebook)
    return notebook


def code_cell(cell: Directive):
    tags = cell.options.get("tags", [])
    if isinstance(tags, str):
        tags = yaml.safe_load(tags)
    metadata = {"tags": tags} if tags else {}
    return nbformat.v4.new_code_cell("\n".join(cell.body).rstrip(), metadata=metadata)


def write_all() -> list[Path]:
    course = read_course()
    written = []
    for page in course.pages:
        notebook = convert(course, page)
        if notebook is None:
            continue
        file = OUT / f"{page}.ipynb"
        file.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, file)
        written.append(file)
    for stale in set(OUT.rglob("*.ipynb")) - set(written):
        stale.unlink()
    print(f"Wrote {len(written)} notebooks to {OUT.relative_to(ROOT)}.")
    return written


if __name__ == "__main__":
    write_all()
