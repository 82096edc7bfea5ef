"""record(): run a collective once for its picture: who contributed what to which cell, step by step.

    recording = record(ring_allreduce, world_size=4, numel=8)          # any fn(mesh, tensor, *args)
    recording.frames[2].messages[0].src, .dst, .elements, .ranks, .values, .nbytes
    recording.frames[2].buffers[rank][element].ranks                   # {0: 1, 3: 1}: rank -> times
    recording.frames[2].text, recording.error, recording.to_dict()     # words; None or text; JSON
    first_divergence(recording, record(solution, 4, 8))                # None, or .frame .rank .text
    watch(my_fn, world_size=4, numel=8)                                # in minidist.widgets: drawn

The function needs no annotations: it runs unmodified on the simulated transport with alpha=1 and
beta=0, where the virtual time of a receive *is* the step's number, and on integers that carry tags.
"""
