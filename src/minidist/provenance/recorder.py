"""record(): runs put together. Tags are decoded, memory becomes buffers, time becomes frames."""

from __future__ import annotations

import contextlib
import io
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

from minidist.provenance.recording import EMPTY, Cell, Frame, Message, Recording, cell_of
from minidist.provenance.sentences import sentence
from minidist.provenance.tagged_run import DIGITS, MAX_INPUTS, MAX_RANKS, Log, TaggedRun, digits

OPS = ("allreduce", "broadcast", "allgather", "reduce_scatter")
SEED = 7


def record(
    fn: Callable[..., Any],
    world_size: int,
    numel: int,
    *args: Any,
    op: str = "allreduce",
    timeout: float = 10.0,
) -> Recording:
    """Run `fn(mesh, tensor, *args)` on `world_size` simulated ranks and record it.

    tensor: 1-d int64 of `numel` elements, another on each rank. op: one of OPS, says what the
    elements are called: rank r's element i is number i, for "allgather" number r * numel + i. For
    "broadcast", args[0] is the rank that has the tensor (0 if there is none).

    A run that fails is recorded up to there; `error` says why. Raises ValueError for more than
    MAX_RANKS ranks or MAX_INPUTS inputs, an unknown op, or a function whose messages depend on the
    values that it is given.
    """
    if op not in OPS:
        raise ValueError(f"op is {op!r}; it is one of {', '.join(OPS)}")
    if not 1 <= world_size <= MAX_RANKS:
        raise ValueError(f"world_size is {world_size}; a picture has room for 1 to {MAX_RANKS}")
    if not 1 <= numel <= MAX_INPUTS // world_size:
        raise ValueError(
            f"numel is {numel}; a picture has room for 1 to {MAX_INPUTS // world_size} elements "
            f"on each of {world_size} ranks"
        )
    runs = []
    for first in range(0, world_size * numel, DIGITS):
        # Only the first run may print: the reader's function ran once, as far as it can tell.
        quiet = contextlib.redirect_stdout(io.StringIO()) if runs else contextlib.nullcontext()
        with quiet:
            runs.append(TaggedRun(fn, world_size, numel, args, first, timeout))
        if runs[-1].pattern != runs[0].pattern:
            raise ValueError(
                "this function sends other messages when it is given other values, so one picture "
                "of it cannot be drawn"
            )
    src = int(args[0]) if op == "broadcast" and args else 0 if op == "broadcast" else None
    return _Reading(runs, op, world_size, numel, src).recording()


@lru_cache
def _inputs(world_size: int, numel: int) -> tuple[tuple[int, ...], ...]:
    """The numbers that are shown: 1 to 9, all ranks different at each element."""
    dice = random.Random(SEED)
    columns = [dice.sample(range(1, 10), world_size) for _ in range(numel)]
    return tuple(tuple(column[rank] for column in columns) for rank in range(world_size))


class _Reading:
    """The runs put together: tags decoded, memory turned into logical buffers, time into frames."""

    def __init__(
        self, runs: list[TaggedRun], op: str, world_size: int, numel: int, src: int | None
    ):
        self.op, self.world_size, self.numel, self.src = op, world_size, numel, src
        self.total = world_size * numel if op == "allgather" else numel
        self.inputs = _inputs(world_size, numel)
        self.runs = runs
        self.logs = runs[0].logs
        self.known: dict[tuple[Any, ...], Cell] = {}
        self.homes: dict[tuple[int, int], list[int | None]] = {}
        self._pair_messages()

    def recording(self) -> Recording:
        error = self.runs[0].error
        messages = self._messages()
        steps = max(messages, default=0)
        states = [self._states(rank) for rank in range(self.world_size)]
        buffers = [tuple(self._start(rank) for rank in range(self.world_size))]
        for step in range(1, steps + 1):
            buffers.append(tuple(self._at(step, r, states[r]) for r in range(self.world_size)))
        if steps == 0 and not error:
            buffers[0] = tuple(state[-1] for state in states)
        chunks = self._chunks([m for ms in messages.values() for m in ms])
        layout, parents = _layout(self.world_size, self._links())
        draft = Recording(
            op=self.op,
            world_size=self.world_size,
            src=self.src,
            layout=layout,
            parents=parents,
            inputs=self.inputs,
            chunks=chunks,
            tensor_bytes=self.numel * torch.int64.itemsize,
            frames=(),
            results=tuple(self._result(rank) for rank in range(self.world_size)),
            touched=tuple(r for r in range(self.world_size) if self._was_touched(r)),
            error=error,
        )
        frames, sent = [], [0] * self.world_size
        for step in range(steps + 1):
            for message in messages.get(step, []):
                sent[message.src] += message.nbytes
            frames.append(
                Frame(step, tuple(messages.get(step, [])), buffers[step], tuple(sent), "")
            )
        draft = replace(draft, frames=tuple(frames))
        return replace(
            draft, frames=tuple(replace(f, text=sentence(draft, f.step)) for f in frames)
        )

    # messages

    def _pair_messages(self) -> None:
        """First in, first out between each pair: which receive took which send."""
        self.taken_by: dict[tuple[int, int], int] = {}  # (rank, its send) -> the receive over there
        self.came_from: dict[tuple[int, int], tuple[int, int]] = {}  # the other way round
        lines = defaultdict(list)
        for rank, log in enumerate(self.logs):
            for number, sent in enumerate(log.sent):
                lines[rank, sent.dst].append((rank, number))
        for rank, log in enumerate(self.logs):
            for number, received in enumerate(log.received):
                origin = lines[received.src, rank].pop(0)
                self.taken_by[origin] = number
                self.came_from[rank, number] = origin

    def _messages(self) -> dict[int, list[Message]]:
        """By step. A message belongs to the step in which its receiver takes it in."""
        by_step = defaultdict(list)
        for rank, log in enumerate(self.logs):
            for number, sent in enumerate(log.sent):
                cells = self._decoded(rank, lambda log, n=number: log.sent[n].content)
                homes = self._homes(rank, sent.storage)
                elements = [
                    cell.element if homes[place] is None else homes[place]
                    for place, cell in zip(sent.places, cells, strict=True)
                ]
                taken = self.taken_by.get((rank, number))
                received = None if taken is None else self.logs[sent.dst].received[taken]
                end = received.end if received else sent.start + 1
                by_step[round(end)].append(
                    Message(
                        rank,
                        sent.dst,
                        tuple(elements),
                        tuple(cells),
                        sent.nbytes,
                        taken is not None,
                    )
                )
        return dict(by_step)

    def _links(self) -> set[tuple[int, int]]:
        return {(rank, sent.dst) for rank, log in enumerate(self.logs) for sent in log.sent}

    def _chunks(self, messages: list[Message]) -> tuple[tuple[int, int], ...]:
        cuts = {0, self.total}
        parts = {"allgather": self.numel, "reduce_scatter": self.total // self.world_size}
        if parts.get(self.op):
            cuts.update(range(0, self.total, parts[self.op]))
        for message in messages:
            inside = {e for e in message.elements if e is not None}
            cuts.update(e for e in range(1, self.total) if (e in inside) != (e - 1 in inside))
        edges = sorted(cuts)
        return tuple(pairwise(edges))

    # memory

    def _decoded(self, rank: int, content: Callable[[Log], list[Any]]) -> list[Cell]:
        """The cells of a piece of memory, of which each run has seen other digits."""
        try:
            seen = [content(tagged.logs[rank]) for tagged in self.runs]
            return [self._decode(numbers) for numbers in zip(*seen, strict=True)]
        except (IndexError, ValueError):  # this memory was not the same thing in all runs
            return [Cell(None, None)] * len(content(self.logs[rank]))

    def _decode(self, numbers: tuple[Any, ...]) -> Cell:
        if numbers not in self.known:
            self.known[numbers] = self._decode_new(numbers)
        return self.known[numbers]

    def _decode_new(self, numbers: tuple[Any, ...]) -> Cell:
        parts = []
        for run_number, number in enumerate(numbers):
            counts = digits(number)
            if counts is None:
                return Cell(None, None)
            for digit, times in enumerate(counts):
                if times:
                    rank, i = divmod(run_number * DIGITS + digit, self.numel)
                    parts.append((rank, self._element(rank, i), times))
        return cell_of(parts, self.inputs, self.op)

    def _element(self, rank: int, i: int) -> int:
        """The number that element i of rank's input goes by."""
        return rank * self.numel + i if self.op == "allgather" else i

    def _look(self, rank: int, storage: int, look: int) -> list[Cell]:
        first = self.logs[rank].storages[storage].first_look
        return self._decoded(rank, lambda log: log.storages[storage].looks[look - first])

    def _differs(self, rank: int, storage: int, look: int) -> bool:
        """Whether any run saw something else in this storage than at the look before."""
        for tagged in self.runs:
            seen = tagged.logs[rank].storages[storage : storage + 1]
            at = look - seen[0].first_look if seen else 0
            if (
                at == 0
                or at >= len(seen[0].looks)
                or seen[0].looks[at] is not seen[0].looks[at - 1]
            ):
                return True
        return False

    def _homes(self, rank: int, number: int) -> list[int | None]:
        """Which element's place each place of a storage is: kept even if a wrong one gets there."""
        key = (rank, number)
        if key not in self.homes:
            self.homes[key] = self._find_homes(rank, number)
        return self.homes[key]

    def _find_homes(self, rank: int, number: int) -> list[int | None]:
        storage = self.logs[rank].storages[number]
        size = len(storage.tensor)
        if number == 0:  # the input
            return [self._element(rank, i) for i in range(size)]
        if storage.received is not None:
            # What comes belongs where it was sent from.
            origin_rank, origin = self.came_from[rank, storage.received]
            sent = self.logs[origin_rank].sent[origin]
            there = self._homes(origin_rank, sent.storage)
            cells = self._decoded(origin_rank, lambda log: log.sent[origin].content)
            return [
                cell.element if there[place] is None else there[place]
                for place, cell in zip(sent.places, cells, strict=True)
            ]
        homes: list[int | None] = [None] * size
        for look in range(storage.first_look, storage.first_look + len(storage.looks)):
            cells = self._look(rank, number, look)
            shifts = {p - cell.element for p, cell in enumerate(cells) if cell.element is not None}
            if len(shifts) == 1 and not any(homes):
                # In order, so the places that are still empty are known too.
                shift = shifts.pop()
                return [p - shift if 0 <= p - shift < self.total else None for p in range(size)]
            for place, cell in enumerate(cells):
                if homes[place] is None:
                    homes[place] = self._home_by_content(rank, cell)
        return homes

    @staticmethod
    def _home_by_content(rank: int, cell: Cell) -> int | None:
        if cell.element is not None:
            return cell.element
        own = [element for giver, element, _ in cell.parts or () if giver == rank]
        return own[0] if len(own) == 1 else None

    def _start(self, rank: int) -> tuple[Cell, ...]:
        buffer = [EMPTY] * self.total
        for i in range(self.numel):
            element = self._element(rank, i)
            buffer[element] = cell_of([(rank, element, 1)], self.inputs, self.op)
        return tuple(buffer)

    def _states(self, rank: int) -> list[tuple[Cell, ...]]:
        """The logical buffer at each look.

        Several pieces of memory may hold the same element (the input, a working copy, what was
        just received): the one whose content is newest counts. A received tensor counts only if it
        is sent on or returned; else it was a temporary, and shows only where nothing else is.
        """
        log = self.logs[rank]
        start = self._start(rank)
        content: dict[int, list[Cell]] = {}
        newest: dict[int, tuple[Any, Cell]] = {}
        states = []
        for look in range(log.looks):
            for number, storage in enumerate(log.storages):
                if look < storage.first_look or not self._differs(rank, number, look):
                    continue
                cells = self._look(rank, number, look)
                homes = self._homes(rank, number)
                age = (look, 1)  # a change comes after a receive
                if number in content:
                    before = content[number]
                elif number == 0:
                    before = [start[e] for e in homes if e is not None]
                    newest = {e: ((True, (-1, 0), 0), start[e]) for e in homes if e is not None}
                else:
                    before = [EMPTY] * len(cells)
                    age = (look, 0 if storage.received is not None else 1)
                content[number] = cells
                kept = (
                    storage.received is None or storage.sent_from or number in log.result_storages
                )
                for element, was, cell in zip(homes, before, cells, strict=True):
                    rating = (kept, age, number)
                    if element is None or cell == was:
                        continue
                    if element not in newest or newest[element][0] < rating:
                        newest[element] = (rating, cell)
            states.append(tuple(newest[e][1] if e in newest else EMPTY for e in range(self.total)))
        result = self._result(rank)
        if log.finished and result is not None:
            part = self.total // self.world_size
            first, size = (rank * part, part) if self.op == "reduce_scatter" else (0, self.total)
            if len(result) == size:
                last = list(states[-1])
                last[first : first + size] = result
                states[-1] = tuple(last)
        return states or [start]

    def _at(self, step: int, rank: int, states: list[tuple[Cell, ...]]) -> tuple[Cell, ...]:
        """Rank's buffer after `step`: what it saw at the first look after the step's last verb."""
        verbs = sum(end <= step for end in self.logs[rank].done)
        return states[min(verbs, len(states) - 1)]

    def _result(self, rank: int) -> tuple[Cell, ...] | None:
        if self.logs[rank].result is None:
            return None
        return tuple(self._decoded(rank, lambda log: log.result or []))

    def _was_touched(self, rank: int) -> bool:
        return any(log.tensor.tolist() != log.initial for log in (t.logs[rank] for t in self.runs))


def _layout(
    world_size: int, links: set[tuple[int, int]]
) -> tuple[str, tuple[int | None, ...] | None]:
    """How to place the ranks, and for a tree each rank's parent."""
    ranks = range(world_size)
    one_way = all((dst, src) not in links for src, dst in links)
    targets = {dst for _, dst in links}
    for direction in (1, -1):
        if all((dst - src - direction) % world_size == 0 for src, dst in links):
            return "ring", None
    if one_way and world_size > 1 and len(links) == world_size - 1 == len(targets):
        parents = {dst: src for src, dst in links}
        return "tree", tuple(parents.get(rank) for rank in ranks)
    pairs = {frozenset(link) for link in links}
    if any(all(hub in pair for pair in pairs) for hub in ranks):
        return "star", None
    root = min(ranks)
    if len(pairs) == world_size - 1:
        parent: dict[int, int | None] = {root: None}
        queue = [root]
        for rank in queue:
            near = sorted(r for pair in pairs if rank in pair for r in pair if r not in parent)
            parent.update(dict.fromkeys(near, rank))
            queue.extend(near)
        if len(parent) == world_size:
            return "tree", tuple(parent[rank] for rank in ranks)
    return "mesh", None
