"""Exercise: tensors over TCP, a frame that survives short reads."""

import struct

import torch

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
]


def read(sock, count, into=None):
    """Exactly `count` bytes, however few come at a time."""
    data = memoryview(bytearray(count)) if into is None else into
    done = 0
    while done < count:
        got = sock.recv_into(data[done:])
        if not got:
            raise ConnectionError(f"the other end closed after {done} of {count} bytes")
        done += got
    return data


def send_tensor(sock, tensor: torch.Tensor) -> None:
    """Send one tensor, so that recv_tensor at the other end can give it back.

    TCP carries a stream of bytes without borders between messages. So a message begins with a
    header from which the receiver knows dtype, shape and how many bytes follow.

    sock: a connected, blocking socket (send, sendall). tensor: any shape (also 0-dim and empty) and
    strides, dtype one of float32, float64, float16, bfloat16, int64, int32, uint8. It is left
    alone.
    Returns nothing, when all is handed to the socket.
    """
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    header = struct.pack("<BB", DTYPES.index(tensor.dtype), tensor.dim())
    header += struct.pack(f"<{tensor.dim()}Q", *tensor.shape)
    sock.sendall(header)
    sock.sendall(memoryview(data.numpy()))


def recv_tensor(sock) -> torch.Tensor:
    """The next tensor on the socket: a new one with the dtype and shape that were sent.

    sock: a connected, blocking socket (recv, recv_into). A read may give fewer bytes than asked
    for; and more than this message may be there already: that belongs to the next call.
    Returns the tensor. Raises ConnectionError if the other end closes before it is complete.
    """
    dtype, dim = struct.unpack("<BB", read(sock, 2))
    shape = struct.unpack(f"<{dim}Q", read(sock, 8 * dim))
    tensor = torch.empty(shape, dtype=DTYPES[dtype])
    data = tensor.reshape(-1).view(torch.uint8).numpy()
    read(sock, data.nbytes, into=memoryview(data))
    return tensor
