"""What a rank prints, as its reader sees it."""

from __future__ import annotations

from typing import TextIO


def show(rank: int, line: str, out: TextIO) -> None:
    """Show a line that a rank printed; what `out` has no character for appears as an escape."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(f"[rank {rank}] {line}\n".encode(encoding, "backslashreplace").decode(encoding))
    out.flush()
