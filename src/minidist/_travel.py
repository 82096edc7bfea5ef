"""Functions travel to another process together with their source lines.

cloudpickle sends a function by value but leaves out where it was written. A reader whose rank
fails wants to see the line of the notebook cell, so file names and the lines of cells go along.
"""

from __future__ import annotations

import io
import linecache
import pickle
from collections import ChainMap
from types import CodeType
from typing import Any

import cloudpickle
import torch

from minidist.transports.queue import from_bytes, to_bytes


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: Any):
        self.filenames: set[str] = set()
        self.reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]
        # Before super().__init__, which is where the C pickler looks for it.
        ours = {CodeType: self._reduce_code, torch.Tensor: _reduce_tensor}
        self.dispatch_table = ChainMap(ours, self.dispatch_table)
        super().__init__(file)

    def _reduce_code(self, code: CodeType) -> Any:
        self.filenames.add(code.co_filename)
        make, parts = self.reduce_code(code)
        return make, tuple(code.co_filename if p == "<dynamic-code>" else p for p in parts)


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    make, *parts = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if make is torch._utils._rebuild_tensor_v3:  # uint16, float8: torch cannot read what it writes
        return from_bytes, (to_bytes(tensor), tensor.dtype, tuple(tensor.shape))
    return make, *parts


def pack(value: Any) -> bytes:
    """Bytes from which `unpack` in any process of this machine makes `value` again."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    sources = {name: linecache.getlines(name) for name in pickler.filenames}
    return pickle.dumps((sources, file.getvalue()))


def unpack(data: bytes) -> Any:
    """The value; tracebacks through its functions will show their lines."""
    sources, value = pickle.loads(data)
    for name, lines in sources.items():
        # No modification time: linecache then never looks for a file on disk.
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return pickle.loads(value)
