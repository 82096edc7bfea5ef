"""The player: an animated view of recorded runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anywidget
import traitlets

from minidist.provenance import Recording, record
from minidist.widgets.common import code, style
from minidist.widgets.strip import strip


class Player(anywidget.AnyWidget):
    """Plays recordings, one per world size; a view only, everything in it was recorded.

    recordings: what Recording.to_dict gives. world_size: which one is shown. step: where it stands.
    name: of the function. note: shown at the last step, for example what went wrong there.
    """

    _esm = code("player")
    _css = style("player")
    recordings = traitlets.List(traitlets.Dict()).tag(sync=True)
    world_size = traitlets.Int().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    name = traitlets.Unicode("a collective").tag(sync=True)
    note = traitlets.Unicode("").tag(sync=True)

    @classmethod
    def of(
        cls, recording: Recording, name: str = "", note: str = "", until: int | None = None
    ) -> Player:
        """One recording, on request only up to frame `until`, with a `note` shown there."""
        data = recording.to_dict()
        if until is not None:
            data["frames"] = data["frames"][: until + 1]
            if until < recording.steps:
                data |= {"error": None, "finished": False}  # what came later is not shown
        name = name or recording.op
        return cls(recordings=[data], world_size=recording.world_size, name=name, note=note)


def player(
    fn: Callable[..., Any],
    *args: Any,
    world_sizes: Iterable[int] = range(2, 9),
    op: str = "allreduce",
    start: int = 4,
    numel: int | Callable[[int], int] | None = None,
) -> Player:
    """A player of `fn(mesh, tensor, *args)` with a recording for each of `world_sizes`.

    start: the world size shown first. numel: elements per rank, or a function of the world size;
    if not given, as many as make one number per chunk (4 for a broadcast).

        player(ring_allreduce)
        player(broadcast, 1, op="broadcast")     # from rank 1
    """
    sizes = list(world_sizes)
    if start not in sizes:
        raise ValueError(f"start is {start}, but the world sizes are {sizes}")
    recordings = [_record(fn, world_size, numel, args, op) for world_size in sizes]
    return Player(
        recordings=[r.to_dict() for r in recordings], world_size=start, name=_name(fn, op)
    )


def show_player(fn: Callable[..., Any], *args: Any, start: int = 4, **options: Any) -> None:
    """Display `player(...)` and under it, for print and for readers without scripts, its strip.

    The strip shows the recording of `start` ranks. Takes what `player` takes.
    """
    from IPython.display import display

    display(player(fn, *args, start=start, **options))
    display(strip(_record(fn, start, options.get("numel"), args, options.get("op", "allreduce"))))


def watch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    numel: int | None = None,
    op: str = "allreduce",
) -> Player:
    """A player of one run of your own `fn(mesh, tensor, *args)`, also if the run fails."""
    return Player.of(_record(fn, world_size, numel, args, op), name=_name(fn, op))


def _record(
    fn: Callable[..., Any],
    world_size: int,
    numel: int | Callable[[int], int] | None,
    args: tuple[Any, ...],
    op: str,
) -> Recording:
    count = numel(world_size) if callable(numel) else numel
    if count is None:  # one number in each chunk makes the clearest picture
        count = {"allgather": 1, "broadcast": 4}.get(op, world_size)
    return record(fn, world_size, count, *args, op=op)


def _name(fn: Callable[..., Any], op: str) -> str:
    return getattr(fn, "__name__", op).replace("_", " ")
