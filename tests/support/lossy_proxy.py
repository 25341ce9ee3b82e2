"""A proxy between client and broker that loses answers of the broker."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType


class LossyProxy:
    """Forwards connections to `target`; a context manager.

    Args:
        target: port of the broker on this machine.
        loses: called with each piece of the broker's answers before it is forwarded; True ends the connection instead.
            By then the broker has done what it was asked to.
    """

    def __init__(self, target: int, loses: Callable[[bytes], bool]) -> None:
        self._target = target
        self._loses = loses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lost = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """What clients dial."""
        return f"127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, broker}
            threading.Thread(target=self._forward, args=(client, broker, None), daemon=True).start()
            threading.Thread(target=self._forward, args=(broker, client, self._loses), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, loses: Callable[[bytes], bool] | None) -> None:
        try:
            while data := source.recv(65536):
                if loses is not None and loses(data):
                    self.lost += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with self._lock:
                self._open.discard(end)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def __enter__(self) -> LossyProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        with self._lock:
            ends = list(self._open)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
