"""What a learner gets to read: a line per check, and one explanation, for the first that failed."""

from __future__ import annotations

import html
import os
import textwrap
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from minidist import palette
from minidist.grading.answers import Place
from minidist.provenance import Recording

if TYPE_CHECKING:
    from minidist.widgets import Player

WIDTH = 92  # of explanations in a terminal

PASSED, FAILED, NOT_REACHED = "passed", "failed", "not reached"


@dataclass
class Feedback:
    """Why a check failed."""

    sentence: str  # what is wrong, in one sentence
    case: str = ""  # the smallest case in which it shows
    expected: str = ""
    came: str = ""
    rank: int | None = None
    step: int | None = None
    place: Place | None = None  # the learner's own line
    diagnosis: str = ""  # the likely reason
    divergence: str = ""  # the first step of the learner's run that is not the course's
    details: str = ""  # who waits for whom, or the traceback


@dataclass
class CheckResult:
    """One check: its name, what it checks, and how it ended."""

    name: str
    title: str
    state: str
    feedback: Feedback | None = None
    seconds: float = 0.0


@dataclass
class Report:
    """The verdict on one function; shows itself in a notebook, prints itself in a terminal."""

    exercise: str
    title: str
    checks: list[CheckResult] = field(default_factory=list)
    printed: str = ""
    printed_in: str | None = None  # the case that the feedback is about; None: all that there were
    printed_cut: int = 0
    seconds: float = 0.0
    recording: Recording | None = None  # the learner's own run, if it differs from the course's
    differs_at: int = 0  # the frame of it where it first does

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(c.state == PASSED for c in self.checks)

    @property
    def failed_check(self) -> CheckResult | None:
        return next((c for c in self.checks if c.state == FAILED), None)

    def __str__(self) -> str:
        lines = [check_line(c, Paint(False)) for c in self.checks if c.state != NOT_REACHED]
        return "\n".join([self.title, *lines, closing(self, Paint(False))])

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "exercise": self.exercise,
            "title": self.title,
            "passed": self.passed,
            "seconds": round(self.seconds, 3),
            "checks": [asdict(c) for c in self.checks],
            "printed": self.printed,
            "printed_characters_left_out": self.printed_cut,
        }

    def player(self) -> Player | None:
        """The learner's own run up to the step where it first differs, or None."""
        if self.recording is None:
            return None
        from minidist.widgets import Player  # half a second to import, and terminals need none

        note = self.failed_check.feedback.divergence
        return Player.of(self.recording, self.exercise, note, until=self.differs_at)

    def _repr_html_(self) -> str:
        return as_html(self)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display({"text/plain": str(self), "text/html": as_html(self)}, raw=True)
        if self.recording is not None:
            display(self.player())


class Paint:
    """Colours for a terminal that wants them."""

    def __init__(self, on: bool):
        self.on = on

    @classmethod
    def for_stream(cls, stream: TextIO) -> Paint:
        return cls(stream.isatty() and not os.environ.get("NO_COLOR"))

    def _wrap(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on else text

    def good(self, text: str) -> str:
        return self._wrap("32", text)

    def bad(self, text: str) -> str:
        return self._wrap("1;31", text)

    def strong(self, text: str) -> str:
        return self._wrap("1", text)

    def dim(self, text: str) -> str:
        return self._wrap("2", text)


def check_line(check: CheckResult, paint: Paint) -> str:
    """'  ok    values         exact on whole numbers'."""
    word = paint.good("ok  ") if check.state == PASSED else paint.bad("FAIL")
    return f"  {word}  {check.name:14}  {check.title}"


def closing(report: Report, paint: Paint) -> str:
    """What comes after the lines: the explanation if there is one, prints, the verdict."""
    parts = []
    failed = report.failed_check
    if failed and failed.feedback:
        parts += ["", explain(failed.feedback, paint)]
    if report.printed:
        parts += [
            "",
            paint.dim(f"{_printed_heading(report)}:"),
            _indent(report.printed.rstrip("\n")),
        ]
        if report.printed_cut:
            parts.append(paint.dim(f"  ... and {report.printed_cut:,} more characters"))
    if report.passed:
        verdict = paint.good(f"{report.exercise}: passed, all {len(report.checks)} checks")
    else:
        left = sum(c.state == NOT_REACHED for c in report.checks)
        waiting = f"; {left} more wait behind it" if left else ""
        name = failed.name if failed else "nothing"
        verdict = paint.bad(f"{report.exercise}: not yet, fails at {name}") + waiting
    return "\n".join([*parts, "", f"{verdict} ({report.seconds:.1f} s)"])


def _printed_heading(report: Report) -> str:
    return "Your code printed" + (" in this case" if report.printed_in else "")


def explain(feedback: Feedback, paint: Paint) -> str:
    """The explanation as indented lines."""
    lines = [paint.strong(line) for line in textwrap.wrap(feedback.sentence, WIDTH)]
    lines += textwrap.wrap(feedback.diagnosis, WIDTH)
    facts = [(label, value) for label, value in _facts(feedback) if value]
    lines += [
        f"{paint.dim(label + ':'):{20 if paint.on else 12}} {value}" for label, value in facts
    ]
    if feedback.divergence:
        lines += ["", *textwrap.wrap("Step by step: " + feedback.divergence, WIDTH)]
    if feedback.details:
        lines += ["", feedback.details]
    return _indent("\n".join(lines))


def _facts(feedback: Feedback) -> list[tuple[str, str]]:
    where = ""
    if feedback.rank is not None:
        where = f"rank {feedback.rank}"
        if feedback.step is not None:
            where += f", step {feedback.step}"
    place = feedback.place
    line = f"{os.path.basename(place.file)}:{place.line}:  {place.code}" if place else ""
    return [
        ("case", feedback.case),
        ("expected", feedback.expected),
        ("came", feedback.came),
        ("where", where),
        ("your line", line),
    ]


def _indent(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


_GOOD_EDGE = f"solid var(--good, var(--jp-success-color1, {palette.LIGHT['good']}))"
_BAD_EDGE = f"double var(--bad, var(--jp-error-color1, {palette.LIGHT['bad']}))"


def as_html(report: Report) -> str:
    """In the course's colours where the page has them, as the book does; else in JupyterLab's.

    Colour is never the only sign: a passed report has a solid edge, another a double one.
    """
    rows = []
    for check in report.checks:
        mark = {PASSED: "✓", FAILED: "✗"}.get(check.state, "·")
        dim = ";opacity:.75" if check.state == NOT_REACHED else ""
        rows.append(
            f'<li style="padding-left:1.5em;text-indent:-1.5em{dim}">'
            f'<span aria-hidden="true">{mark}</span> {check.state}: '
            f"<code>{html.escape(check.name)}</code>, {html.escape(check.title)}</li>"
        )
    verdict = "passed" if report.passed else "not yet"
    edge = _GOOD_EDGE if report.passed else _BAD_EDGE
    parts = [
        f'<div class="minidist-report" style="border-left:6px {edge};'
        'padding:.2em 0 .2em 1em;overflow-x:auto">'
        f"<p><strong>{html.escape(report.title)}: {verdict}</strong> "
        f"({sum(c.state == PASSED for c in report.checks)} of {len(report.checks)} checks, "
        f"{report.seconds:.1f} s)</p>"
    ]
    failed = report.failed_check
    if failed and failed.feedback:
        feedback = failed.feedback
        parts.append(f"<p><strong>{html.escape(feedback.sentence)}</strong></p>")
        if feedback.diagnosis:
            parts.append(f"<p>{html.escape(feedback.diagnosis)}</p>")
        facts = "".join(
            f'<dt style="float:left;clear:left;width:6em">{label}</dt>'
            f'<dd style="margin-left:7em"><code>{html.escape(value)}</code></dd>'
            for label, value in _facts(feedback)
            if value
        )
        parts.append(f"<dl>{facts}</dl>")
        if feedback.divergence:
            parts.append(f"<p>Step by step: {html.escape(feedback.divergence)}</p>")
        if feedback.details:
            parts.append(f"<pre>{html.escape(feedback.details)}</pre>")
    opened = "" if report.passed else " open"
    parts.append(
        f"<details{opened}><summary>All checks</summary>"
        f'<ul style="list-style:none;padding:0;margin:.5em 0">{"".join(rows)}</ul></details>'
    )
    if report.printed:
        more = f"\n... and {report.printed_cut:,} more characters" if report.printed_cut else ""
        parts.append(
            f"<details open><summary>{_printed_heading(report)}</summary>"
            f"<pre>{html.escape(report.printed + more)}</pre></details>"
        )
    return "".join(parts) + "</div>"
