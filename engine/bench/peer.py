"""The other end of the hop benchmark, a process of its own: answers every tensor with a small message."""

from __future__ import annotations

import sys

import zmq

from ...protocol.codec import Envelope, decode, encode
from ...protocol.messages.client import PutBlob
from ...protocol.messages.engine import Stored
from ...protocol.shm import Segments
from ...protocol.sockets import SocketListener

ENGINE = "bench"
SESSION = "hop"


def answer_bare(endpoint: str) -> None:
    """The floor: the same bytes through pyzmq alone."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind(endpoint)
    while True:
        peer, header, *_ = socket.recv_multipart(copy=False)
        if header.bytes == b"bye":
            return
        socket.send_multipart([peer.bytes, b"ack"], copy=False)


def answer_protocol(endpoint: str) -> None:
    """What an engine does with a message, short of using the tensor."""
    listener = SocketListener(endpoint)
    opener = Segments(ENGINE).opener(SESSION)
    while (item := listener.recv(None)) is not None:
        peer, frames = item
        envelope = decode(frames, opener=opener)
        if not isinstance(envelope.message, PutBlob):
            return
        stored = Stored(digest=envelope.message.digest)
        listener.send(peer, encode(Envelope(stored, envelope.id, SESSION)))


if __name__ == "__main__":
    {"bare": answer_bare, "protocol": answer_protocol}[sys.argv[1]](sys.argv[2])
