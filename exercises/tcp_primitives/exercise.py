"""Exercise: tensors over TCP, a frame that survives short reads."""

import struct

import torch


def send_tensor(sock, tensor: torch.Tensor) -> None:
    """Send one tensor, so that recv_tensor at the other end can give it back.

    TCP carries a stream of bytes without borders between messages. So a message begins with a
    header from which the receiver knows dtype, shape and how many bytes follow.

    sock: a connected, blocking socket (send, sendall). tensor: any shape (also 0-dim and empty) and
    strides, dtype one of float32, float64, float16, bfloat16, int64, int32, uint8. It is left
    alone.
    Returns nothing, when all is handed to the socket.
    """
    raise NotImplementedError


def recv_tensor(sock) -> torch.Tensor:
    """The next tensor on the socket: a new one with the dtype and shape that were sent.

    sock: a connected, blocking socket (recv, recv_into). A read may give fewer bytes than asked
    for; and more than this message may be there already: that belongs to the next call.
    Returns the tensor. Raises ConnectionError if the other end closes before it is complete.
    """
    raise NotImplementedError
