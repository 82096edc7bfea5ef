"""The 192 bytes in front of each message on a wire that carries plain bytes."""

from __future__ import annotations

import struct
from functools import cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from minidist.trace import dtype_name
from minidist.transports import Label

MAX_DIMS = 15
_LAYOUT = struct.Struct(f"<16s32sIII4xQ{MAX_DIMS}q")  # dtype, label, dimensions, bytes, shape
NBYTES = _LAYOUT.size


class Header(NamedTuple):
    """What the receiver must know before the first element comes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    label: Label

    @property
    def nbytes(self) -> int:
        """Bytes of the elements that follow."""
        return prod(self.shape) * self.dtype.itemsize


def pack_header(tensor: Tensor, label: Label) -> bytes:
    """The header of a message that carries `tensor`."""
    shape = tensor.shape
    if len(shape) > MAX_DIMS:
        raise ValueError(
            f"a message has at most {MAX_DIMS} dimensions, this tensor has {len(shape)}: "
            "send a reshaped view and shape it again on the other side"
        )
    nbytes = tensor.numel() * tensor.element_size()
    dims = (*shape, *(0,) * (MAX_DIMS - len(shape)))
    number, collective, checksum = label
    names = _ascii(dtype_name(tensor.dtype)), _ascii(collective)
    return _LAYOUT.pack(*names, number, checksum, len(shape), nbytes, *dims)


def unpack_header(data: bytes | bytearray | memoryview) -> Header:
    """What `pack_header` said."""
    name, collective, number, checksum, ndim, nbytes, *dims = _LAYOUT.unpack(data)
    label = Label(number, _text(collective), checksum)
    header = Header(_dtype(name), tuple(dims[:ndim]), label)
    if header.nbytes != nbytes:
        raise ValueError(f"no header: {header} cannot have {nbytes} bytes")
    return header


@cache
def _ascii(name: str) -> bytes:
    return name.encode("ascii")


@cache
def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode("ascii", "replace")


@cache
def _dtype(name: bytes) -> torch.dtype:
    dtype = getattr(torch, _text(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no header: {name!r} is no dtype")
    return dtype


def plain(tensor: Tensor) -> Tensor:
    """The elements of a tensor of any device and strides, in row-major order in our memory.

    The tensor itself where it is so already, else a copy.
    """
    # x.conj() and x.imag only set a mark on x; the bytes are not negated yet.
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def raw_bytes(tensor: Tensor) -> memoryview:
    """The memory of a `plain` tensor, writable, no copy."""
    if not tensor.numel():
        return memoryview(b"")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
