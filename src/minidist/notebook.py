"""What the chapters use to show things: source code as it is installed, and small tables."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from IPython.display import Markdown


def show(*functions: Callable[..., Any] | type, docstring: bool = True) -> Markdown:
    """The source of functions or classes, as installed, with package, version and line."""
    return Markdown("\n\n".join(_source(f, docstring) for f in functions))


def passage(function: Callable[..., Any], start: str, stop: str = "") -> Markdown:
    """Some lines of a function: from the first that contains `start` to before one with `stop`.

    Without `stop`, to the end. Raises ValueError if no line contains them.
    """
    lines, first = inspect.getsourcelines(function)
    begin = _line_with(start, lines, 0)
    end = _line_with(stop, lines, begin + 1) if stop else len(lines)
    source = textwrap.dedent("".join(lines[begin:end])).rstrip()
    return Markdown(f"```python\n{source}\n```\n<small>{_place(function, first + begin)}</small>")


def _line_with(text: str, lines: Sequence[str], begin: int) -> int:
    for number in range(begin, len(lines)):
        if text in lines[number]:
            return number
    raise ValueError(f"no line from {begin} on contains {text!r}")


def _source(function: Callable[..., Any] | type, docstring: bool) -> str:
    lines, first = inspect.getsourcelines(function)
    source = textwrap.dedent("".join(lines)).rstrip()
    if not docstring and function.__doc__:
        source = _without_docstring(source)
    return f"```python\n{source}\n```\n<small>{_place(function, first)}</small>"


def _place(function: Callable[..., Any] | type, line: int) -> str:
    package = function.__module__.split(".")[0]
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:  # of a notebook, or of a script
        return function.__module__
    return f"{function.__module__}, line {line} ({package} {version})"


def _without_docstring(source: str) -> str:
    head, rest = source.split('"""', 1)
    body = rest.split('"""', 1)[1]
    return head.rstrip() + body


def table(rows: Sequence[Mapping[str, Any]]) -> Markdown:
    """Rows with the same keys as a Markdown table; numbers stand to the right."""
    keys = list(rows[0])
    marks = ["--:" if _is_number(rows[0][key]) else ":--" for key in keys]
    lines = [keys, marks, *([_cell(row[key]) for key in keys] for row in rows)]
    return Markdown("\n".join("| " + " | ".join(line) + " |" for line in lines))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "\\|")
