"""What a process prints, sorted by case: a mark in the stream says which case begins."""

from __future__ import annotations

import codecs
import re
import secrets
from dataclasses import dataclass

MAX_PRINTED = 4000  # characters of one case, and of a report

_MARK = "\x1e{token}:{case};"
_LONGEST_MARK = 40


def new_token() -> str:
    """What makes the marks of one process its own: no text that it prints by chance is one."""
    return secrets.token_hex(8)


def mark(token: str, case: int) -> bytes:
    """What goes into the stream when a case begins; -1 is loading."""
    return _MARK.format(token=token, case=case).encode()


@dataclass
class Printed:
    """A text that may have been cut, and how many characters were left out."""

    text: str = ""
    cut: int = 0

    def add(self, text: str, cut: int = 0) -> None:
        room = MAX_PRINTED - len(self.text)
        self.text += text[:room]
        self.cut += max(0, len(text) - room) + cut


class PrintsByCase:
    """Takes the stream piece by piece; `by_case` has what was printed in each case so far."""

    def __init__(self, token: str):
        self.by_case: dict[int, Printed] = {}
        self._case = -1
        self._mark = re.compile(_MARK.format(token=token, case=r"(-?\d{1,9})"))
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def take(self, data: bytes, last: bool = False) -> None:
        """The next piece; `last`: nothing follows, so half a mark at its end is none."""
        text = self._rest + self._decoder.decode(data, final=last)
        while found := self._mark.search(text):
            self._keep(text[: found.start()])
            self._case, text = int(found[1]), text[found.end() :]
        half = text.rfind("\x1e", max(0, len(text) - _LONGEST_MARK))
        end = len(text) if last or half < 0 else half
        self._keep(text[:end])
        self._rest = text[end:]

    def _keep(self, text: str) -> None:
        if text:
            self.by_case.setdefault(self._case, Printed()).add(text)
