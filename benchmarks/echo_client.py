"""Send the frames of a producer to the echo server and read them back.

Messages are built, encoded and framed within the measured time, as a producer does; the answer is the frame itself
instead of a receipt.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from reput_cli.bench_clients import Payloads
from reput_protocol.codes import AckLevel, RequestCode
from reput_protocol.commands.send import PutMessageHeader
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import Header, HeaderType

_READ_BYTES = 1 << 18


class EchoClient:
    """A connection to the echo server."""

    def __init__(self, address: str, topic: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._topic = topic
        self._opaque = 0

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def frame(self, messages: list[Message], ack: str) -> bytes:
        """Return the PutMessage frame that a producer would send."""
        self._opaque += 1
        block = encode_put_block(
            messages, topic=self._topic, queue_id=0, born_timestamp_ms=time.time_ns() // 1_000_000
        )
        header = PutMessageHeader(self._topic, 0, len(messages), AckLevel(ack))
        ext = header.to_ext(HeaderType.MSGPACK)
        return encode_frame(Header(RequestCode.PUT_MESSAGE, self._opaque, ext=ext), HeaderType.MSGPACK, block)

    def one_in_flight(self, payloads: Payloads, count: int) -> list[float]:
        """Send one frame after the other; return the seconds of each round trip."""
        latencies = []
        for number in range(count):
            started_at = time.perf_counter()
            frame = self.frame([Message(self._topic, payloads.make(number), tag="bench")], "page_cache")
            self._socket.sendall(frame)
            self._read(len(frame))
            latencies.append(time.perf_counter() - started_at)
        return latencies

    def pipelined(self, payloads: Payloads, count: int, in_flight: int, batch: int) -> float:
        """Keep `in_flight` frames of `batch` messages in flight; return messages per second."""
        started_at = time.perf_counter()
        for start in range(0, count, in_flight * batch):
            frames = [
                self.frame(
                    [
                        Message(self._topic, payloads.make(n), tag="bench")
                        for n in range(first, first + batch)
                    ],
                    "page_cache",
                )
                for first in range(start, min(start + in_flight * batch, count), batch)
            ]
            self._exchange(b"".join(frames))
        return count / (time.perf_counter() - started_at)

    def _exchange(self, data: bytes) -> None:
        """Send and read alternately, because the socket buffers do not hold everything."""
        self._socket.setblocking(False)
        sent = received = 0
        view = memoryview(data)
        while received < len(data):
            if sent < len(data):
                with suppress(BlockingIOError):
                    sent += self._socket.send(view[sent : sent + _READ_BYTES])
            try:
                received += len(self._socket.recv(_READ_BYTES))
            except BlockingIOError:
                continue
        self._socket.setblocking(True)

    def _read(self, count: int) -> None:
        while count:
            count -= len(self._socket.recv(min(count, _READ_BYTES)))
