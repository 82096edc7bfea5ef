"""Sends the number of elements; the shape is lost."""

import struct

import torch

CHECK = "tensors"
SAYS = "It arrives with another shape"

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]
DTYPES.append(torch.uint8)


def read(sock, count):
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return data


def send_tensor(sock, tensor):
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    header = struct.pack("<BB", DTYPES.index(tensor.dtype), 1)
    header += struct.pack("<Q", tensor.numel())
    sock.sendall(header + data)


def recv_tensor(sock):
    dtype, dim = struct.unpack("<BB", read(sock, 2))
    shape = struct.unpack(f"<{dim}Q", read(sock, 8 * dim))
    tensor = torch.empty(shape, dtype=DTYPES[dtype])
    data = read(sock, tensor.numel() * tensor.element_size())
    if data:
        tensor.reshape(-1).view(torch.uint8)[:] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return tensor
