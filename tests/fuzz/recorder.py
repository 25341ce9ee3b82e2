"""A relay between clients and a broker, which keeps an example of each request that the clients send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from reput_protocol.codes import LanguageCode
from reput_protocol.errors import ProtocolError
from reput_protocol.wire.frames import FrameReader, decode_header
from reput_protocol.wire.header import RESPONSE_FLAG
from support.broker_process import free_port

_VIP_DISTANCE: Final = 2
_BYTES_MAX: Final = 4096
_EXAMPLES_MAX: Final = 3
"""Of one request code in one type of header: with different fields."""


class Example(NamedTuple):
    """A frame as a client has sent it."""

    header_type: int
    header: bytes
    body: bytes


class Recorder:
    """Listens until it is closed, on a port and on the one two below, where RocketMQ's clients expect the VIP channel.

    Args:
        of_reput: keep the requests of Reput's own client, and no others; else only those of others.
    """

    def __init__(self, *, of_reput: bool = False) -> None:
        self._of_reput = of_reput
        self._lock = threading.Lock()
        self._examples: dict[tuple[int, int], dict[frozenset[str], Example]] = {}
        self._open: list[socket.socket] = []
        self._broker = ("", 0)
        self._listeners = _two_listeners()
        self.address = f"127.0.0.1:{self._listeners[0].getsockname()[1]}"

    def start(self, broker: str) -> None:
        """Relay new connections to the broker at this address."""
        host, _, port = broker.rpartition(":")
        self._broker = (host, int(port))
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def examples(self) -> Iterator[Example]:
        """Return what was kept, in the order of the request codes."""
        with self._lock:
            for key in sorted(self._examples):
                yield from self._examples[key].values()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        for each in (*self._listeners, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                broker = socket.create_connection(self._broker)
            except OSError:
                return
            self._open += [client, broker]
            threading.Thread(target=self._relay, args=(client, broker, FrameReader()), daemon=True).start()
            threading.Thread(target=self._relay, args=(broker, client, None), daemon=True).start()

    def _relay(self, source: socket.socket, destination: socket.socket, reader: FrameReader | None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if reader is not None:
                    self._note(reader, data)
                destination.sendall(data)
        for end in (source, destination):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _note(self, reader: FrameReader, data: bytes) -> None:
        with suppress(ProtocolError):
            for header_type, encoded, body in reader.receive_data(data):
                header = decode_header(header_type, encoded)
                if header.flag & RESPONSE_FLAG or len(encoded) + len(body) > _BYTES_MAX:
                    continue
                if self._of_reput is not (header.language == LanguageCode.PYTHON):
                    continue
                with self._lock:
                    examples = self._examples.setdefault((header.code, header_type), {})
                    fields = frozenset(header.ext)
                    if fields in examples or len(examples) < _EXAMPLES_MAX:
                        examples[fields] = Example(header_type, encoded, bytes(body))


def _two_listeners() -> tuple[socket.socket, socket.socket]:
    while True:
        port = free_port()
        found = []
        with suppress(OSError):
            found.append(socket.create_server(("127.0.0.1", port)))
            found.append(socket.create_server(("127.0.0.1", port - _VIP_DISTANCE)))
            return found[0], found[1]
        for each in found:
            each.close()
