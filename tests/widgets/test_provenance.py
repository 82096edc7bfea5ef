"""Recordings: tags decode exactly, pictures agree with the real run, broken functions show."""

from __future__ import annotations

import json

import broken
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import minidist
from minidist import run
from minidist.provenance import Cell, first_divergence, record
from minidist.provenance.tagged_run import DIGITS, MAX_VERBS, digits, tag
from minidist.transports.simulated import Simulated

CASES = [
    (minidist.ring_allreduce, "allreduce", ()),
    (minidist.naive_allreduce, "allreduce", ()),
    (minidist.broadcast, "broadcast", ("last",)),
    (minidist.allgather, "allgather", ()),
    (minidist.reduce_scatter, "reduce_scatter", ()),
]
IDS = [fn.__name__ for fn, _, _ in CASES]


def arguments(args, world_size):
    return tuple(world_size - 1 if a == "last" else a for a in args)


# --- tags


@given(st.lists(st.integers(0, 15), min_size=DIGITS, max_size=DIGITS))
def test_any_sum_of_tags_is_read_back(counts):
    total = sum(times * tag(digit) for digit, times in enumerate(counts))
    assert total < 2**63
    assert digits(total) == counts


@given(st.lists(st.integers(-40, 2000), min_size=DIGITS, max_size=DIGITS))
def test_an_overflowing_digit_is_unknown_and_never_another_sum(counts):
    total = sum(times * tag(digit) for digit, times in enumerate(counts))
    assert digits(total) in (counts, None)
    if all(0 <= times <= 15 for times in counts):
        assert digits(total) == counts


@given(st.integers(1, 2**40))
def test_numbers_that_are_no_tags_are_unknown(number):
    assert digits(number) is None


def test_no_tag_where_the_element_is_not_this_runs():
    assert tag(-1) == tag(DIGITS) == 0


# --- right functions


@pytest.mark.parametrize("fn, op, args", CASES, ids=IDS)
@pytest.mark.parametrize("world_size", range(1, 9))
@pytest.mark.parametrize("numel", [1, 3, "N", "2N+1"])
def test_a_recording_is_the_real_run(fn, op, args, world_size, numel):
    if op in ("allgather", "reduce_scatter"):  # here a part has this size, not the whole
        numel = {"N": 2, "2N+1": 5}.get(numel, numel)
        numel *= world_size if op == "reduce_scatter" else 1
    else:
        numel = {"N": world_size, "2N+1": 2 * world_size + 1}.get(numel, numel)
    args = arguments(args, world_size)
    recording = record(fn, world_size, numel, *args, op=op)
    assert recording.error is None and recording.touched == ()

    inputs = [torch.tensor(row) for row in recording.inputs]
    real = run(fn, world_size, *args, inputs=inputs, transport=Simulated(alpha=1, beta=0))
    for rank, result in enumerate(real.results):
        assert [c.value for c in recording.results[rank]] == result.reshape(-1).tolist()
        for cell, goal in zip(
            recording.frames[-1].buffers[rank], recording.expected(rank), strict=True
        ):
            assert goal in (None, cell)

    trace = real.trace
    assert list(recording.frames[-1].sent) == trace.bytes_sent
    assert recording.steps == round(trace.duration)
    sent = [0] * world_size
    for frame in recording.frames:
        received = [e for e in trace if e.kind == "recv" and round(e.end) == frame.step]
        assert sorted((m.src, m.dst, m.nbytes) for m in frame.messages) == sorted(
            (e.peer, e.rank, e.nbytes) for e in received if frame.step
        )
        for message in frame.messages:
            sent[message.src] += message.nbytes
            assert message.nbytes == 8 * len(message.cells)
        assert list(frame.sent) == sent


@pytest.mark.parametrize("world_size", range(2, 9))
def test_each_step_of_the_ring_adds_one_rank(world_size):
    recording = record(minidist.ring_allreduce, world_size, 2 * world_size)
    assert recording.chunks == tuple((2 * k, 2 * k + 2) for k in range(world_size))
    for frame in recording.frames[1:world_size]:
        for rank, buffer in enumerate(frame.buffers):
            chunk = (rank - frame.step) % world_size  # the one that has just come
            givers = {(chunk + i) % world_size for i in range(frame.step + 1)}
            for element in range(2 * chunk, 2 * chunk + 2):
                assert buffer[element].ranks == dict.fromkeys(sorted(givers), 1)


def test_padding_belongs_to_no_element():
    recording = record(minidist.ring_allreduce, 4, 6)
    padded = [m for m in recording.frames[1].messages if None in m.elements]
    assert [m.elements for m in padded] == [(None, None)]
    assert all(cell.parts == () for m in padded for cell in m.cells)
    assert "only padding" in recording.describe(padded[0])
    assert recording.chunks == ((0, 2), (2, 4), (4, 6))


@pytest.mark.parametrize("fn", [broken.list_of_clones, broken.columns, broken.copies_to_send])
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_it_does_not_matter_how_memory_is_kept(fn, world_size):
    numel = 2 * world_size
    reference = record(minidist.ring_allreduce, world_size, numel)
    recording = record(fn, world_size, numel)
    assert recording.error is None
    assert [f.buffers for f in recording.frames] == [f.buffers for f in reference.frames]
    assert first_divergence(recording, reference) is None


def test_local_sums_that_are_never_sent_are_seen():
    frames = record(minidist.naive_allreduce, 4, 4).frames
    assert [f.buffers[0][0].ranks for f in frames[:4]] == [
        dict.fromkeys(range(k), 1) for k in range(1, 5)
    ]


@pytest.mark.parametrize(
    "fn, op, layouts",
    [
        (minidist.ring_allreduce, "allreduce", ["ring"] * 4),
        (minidist.naive_allreduce, "allreduce", ["ring", "star", "star", "star"]),
        (minidist.broadcast, "broadcast", ["ring", "tree", "tree", "tree"]),
        (broken.wrong_neighbour, "allreduce", ["ring"] * 4),
    ],
)
def test_the_layout_comes_from_the_messages(fn, op, layouts):
    found = [record(fn, n, n, op=op) for n in (2, 3, 4, 8)]
    assert [r.layout for r in found] == layouts
    if op == "broadcast":
        assert found[3].parents == (None, 0, 0, 1, 0, 1, 2, 3)


def test_sentences():
    texts = [f.text for f in record(minidist.ring_allreduce, 4, 4).frames]
    assert texts[2] == (
        "Step 1: rank 1 sends chunk 0, the sum of ranks 0 and 1, to rank 2, which adds its "
        "own. At the same time the other 3 ranks send theirs."
    )
    assert "the sum of all 4 ranks, to rank 0, which keeps it" in texts[4]
    assert record(minidist.ring_allreduce, 1, 3).frames[0].text.startswith("One rank alone")


def test_numbers_are_small_and_differ_from_rank_to_rank():
    inputs = record(minidist.ring_allreduce, 8, 8).inputs
    assert all(1 <= x <= 9 for row in inputs for x in row)
    assert all(len(set(column)) == 8 for column in zip(*inputs, strict=True))


# --- broken functions


def diverge(fn, numel=8):
    recording = record(fn, 4, numel)
    return recording, first_divergence(recording, record(minidist.ring_allreduce, 4, numel))


def test_a_mix_of_elements_is_shown_as_what_it_is():
    recording, divergence = diverge(broken.off_by_one)
    # Rank 1 adds chunk 0 of rank 0 (elements 0 and 1) to its own chunk 1 (elements 2 and 3).
    assert recording.frames[1].buffers[1][2] == Cell(
        ((0, 0, 1), (1, 2, 1)), recording.inputs[0][0] + recording.inputs[1][2]
    )
    assert recording.frames[1].text.count("which adds it in another place") == 1
    assert (divergence.frame, divergence.rank) == (2, 0)
    assert divergence.text == (
        "In step 1, rank 0 should send chunk 3, the sum of ranks 0 and 3, to rank 1; instead it "
        "sends its own chunk 3 to rank 1."
    )


def test_the_wrong_neighbour_is_named():
    recording, divergence = diverge(broken.wrong_neighbour)
    assert {(m.src - m.dst) % 4 for f in recording.frames for m in f.messages} == {1}
    assert divergence.text.endswith("instead it sends its own chunk 0 to rank 3.")


def test_what_is_added_too_early_counts_twice():
    recording, divergence = diverge(broken.adds_before_sending)
    assert recording.frames[1].messages[0].cells[0].ranks == {0: 2}
    assert "instead it sends chunk 0, from rank 0 (twice), to rank 1" in divergence.text


def test_whole_tensors_are_one_chunk_and_all_bytes():
    recording, divergence = diverge(broken.whole_tensor)
    assert recording.chunks == ((0, 8),)
    assert recording.frames[-1].sent == (3 * 64,) * 4
    assert divergence.frame == 1 and "its whole buffer" in divergence.text


def test_a_double_addition_shows_as_two():
    recording, divergence = diverge(broken.adds_twice)
    assert recording.frames[1].buffers[1][0].ranks == {0: 2, 1: 1}
    assert "ranks 0 and 3 (twice)" in divergence.text


def test_what_comes_and_is_thrown_away_does_not_show():
    recording, divergence = diverge(broken.forgets_to_add)
    assert all(f.buffers == recording.frames[0].buffers for f in recording.frames)
    assert "whose buffer stays as it was there" in recording.frames[1].text
    assert divergence.frame == 2


def test_a_deadlock_is_recorded_up_to_it_and_says_who_waits_for_whom():
    recording, divergence = diverge(broken.all_receive_first)
    assert recording.steps == 1
    assert recording.frames[1].buffers[1][0].ranks == {0: 1, 1: 1}
    assert "0 -> 3 -> 2 -> 1 -> 0" in recording.error
    assert divergence.frame == 1 and recording.error in divergence.text


def test_a_raising_rank_is_recorded_up_to_there():
    recording, divergence = diverge(broken.raises_halfway)
    assert recording.error == "rank 2 raised IndexError: chunk 9 of 4"
    assert recording.steps >= 1 and recording.layout == "ring"
    assert "rank 2 raised IndexError" in divergence.text


def test_a_message_that_nobody_takes_is_marked():
    recording, _ = diverge(broken.sends_too_much)
    assert [m.received for m in recording.frames[1].messages] == [True] * 4
    assert [m.received for m in recording.frames[2].messages] == [False] * 4
    assert "rank 1 never receives it" in recording.frames[2].text


def test_a_loop_without_end_ends():
    recording, divergence = diverge(broken.never_ends)
    assert "does the loop end?" in recording.error
    assert recording.steps <= MAX_VERBS
    assert divergence.frame == 1


def test_only_the_result_is_wrong():
    def returns_the_input(mesh, tensor):
        minidist.ring_allreduce(mesh, tensor)
        return tensor

    def returns_nothing(mesh, tensor):
        minidist.ring_allreduce(mesh, tensor)

    _, divergence = diverge(returns_the_input)
    assert divergence.frame == 6 and "number 0 of what rank 0 returns should be" in divergence.text
    assert diverge(returns_nothing)[1].text == "Rank 0 returns no tensor."


def test_a_changed_input_is_noticed():
    def in_place(mesh, tensor):
        tensor += 0 if mesh.rank else tensor
        return minidist.ring_allreduce(mesh, tensor)

    assert record(in_place, 4, 4).touched == (0,)


def test_numbers_that_are_no_sums_are_unknown():
    def halves(mesh, tensor):
        return minidist.ring_allreduce(mesh, tensor) / 2

    recording = record(halves, 2, 2)
    assert recording.results[0] == (Cell(None, None),) * 2


def test_only_the_first_run_prints(capsys):
    def talks(mesh, tensor):
        print("here")
        return minidist.ring_allreduce(mesh, tensor)

    record(talks, 4, 8)  # 32 elements: three runs
    assert capsys.readouterr().out.count("here") == 4


def test_messages_that_depend_on_values_are_refused():
    def peeks(mesh, tensor):
        if mesh.rank == 0 and tensor[0] > 0:
            mesh.send(1, tensor)
        return tensor

    with pytest.raises(ValueError, match="other messages when it is given other values"):
        record(peeks, 4, 8)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"world_size": 9}, "world_size is 9"),
        ({"numel": 0}, "numel is 0"),
        ({"numel": 5000}, "numel is 5000"),
        ({"op": "gather"}, "op is 'gather'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, message):
    options = {"world_size": 4, "numel": 4, **options}
    with pytest.raises(ValueError, match=message):
        record(minidist.ring_allreduce, **options)


# --- JSON


@pytest.mark.parametrize("fn, op, args", CASES, ids=IDS)
def test_json_holds_everything_once(fn, op, args):
    recording = record(fn, 8, 8, *arguments(args, 8), op=op)
    data = json.loads(json.dumps(recording.to_dict()))
    cells = [json.dumps(c) for c in data["cells"]]
    assert len(set(cells)) == len(cells)

    def cell(number):
        parts, value = data["cells"][number].values()
        return Cell(None if parts is None else tuple(map(tuple, parts)), value)

    for frame, drawn in zip(recording.frames, data["frames"], strict=True):
        assert drawn["text"] == frame.text and drawn["sent"] == list(frame.sent)
        for buffer, numbers in zip(frame.buffers, drawn["buffers"], strict=True):
            assert tuple(map(cell, numbers)) == buffer
        for message, m in zip(frame.messages, drawn["messages"], strict=True):
            assert tuple(map(cell, m["cells"])) == message.cells
            assert (m["src"], m["dst"], m["nbytes"]) == (message.src, message.dst, message.nbytes)
