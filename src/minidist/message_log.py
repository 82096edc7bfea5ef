"""A counter that writes down each message of a rank as it happens, one line of JSON each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minidist.trace import Event


class MessageLog(list):
    """A rank's events, and the file that they also go to.

    Each line has the event's rank, kind, peer, step, bytes and time, and what this rank has sent
    and received so far. A line is in the file as soon as the verb is over, so the file says how far
    a rank came even if its process is killed.
    """

    def __init__(self, path: str | Path):
        super().__init__()
        self.path = path
        self.file: Any = None
        self.totals = {"send": [0, 0], "recv": [0, 0]}  # messages, bytes

    def append(self, event: Event) -> None:
        super().append(event)
        if self.file is None:
            self.file = open(self.path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        total = self.totals[event.kind]
        total[0] += 1
        total[1] += event.nbytes
        line = {
            "rank": event.rank,
            "kind": event.kind,
            "peer": event.peer,
            "step": event.step,
            "bytes": event.nbytes,
            "time": round(event.end, 6),
            "messages_sent": self.totals["send"][0],
            "bytes_sent": self.totals["send"][1],
            "messages_received": self.totals["recv"][0],
            "bytes_received": self.totals["recv"][1],
        }
        self.file.write(json.dumps(line) + "\n")

    def __reduce__(self) -> Any:
        return MessageLog, (self.path,)  # to the process of its rank, before it begins
