"""Takes what has come when the other end closes, and fills the rest with zeros."""

import struct

import torch

CHECK = "closed"
SAYS = "A message that is cut off was taken for a whole one"

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]
DTYPES.append(torch.uint8)


def read(sock, count):
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            return data.ljust(count, b"\0")
        data += piece
    return data


def send_tensor(sock, tensor):
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    header = struct.pack("<BB", DTYPES.index(tensor.dtype), tensor.dim())
    header += struct.pack(f"<{tensor.dim()}Q", *tensor.shape)
    sock.sendall(header + data)


def recv_tensor(sock):
    dtype, dim = struct.unpack("<BB", read(sock, 2))
    shape = struct.unpack(f"<{dim}Q", read(sock, 8 * dim))
    tensor = torch.empty(shape, dtype=DTYPES[dtype])
    data = read(sock, tensor.numel() * tensor.element_size())
    if data:
        tensor.reshape(-1).view(torch.uint8)[:] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return tensor
