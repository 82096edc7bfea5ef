"""record(): run a collective for its picture: who contributed what to which cell, and when.

    recording = record(ring_allreduce, 4, 8)           # any fn(mesh, tensor, *args)
    message = recording.frames[2].messages[0]          # .src .dst .elements .cells .ranks .nbytes
    cell = recording.frames[2].buffers[rank][element]  # .ranks {0: 1, 3: 1} (rank: times), .value
    recording.frames[2].text, recording.error          # words; None, or who waits for whom
    recording.to_dict()                                # plain JSON, what the player draws
    first_divergence(recording, record(solution, 4, 8))  # None, or .frame .rank .text

recording.py has what a recording is, recorder.py makes one: it reads what tagged_run.py has seen.
sentences.py and divergence.py say in words what happens, and where two recordings part.
"""

from minidist.provenance.divergence import Divergence, first_divergence
from minidist.provenance.recorder import OPS, record
from minidist.provenance.recording import Cell, Frame, Message, Recording
from minidist.provenance.tagged_run import MAX_INPUTS, MAX_RANKS

__all__ = [
    "MAX_INPUTS",
    "MAX_RANKS",
    "OPS",
    "Cell",
    "Divergence",
    "Frame",
    "Message",
    "Recording",
    "first_divergence",
    "record",
]
