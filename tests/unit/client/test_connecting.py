"""Connecting to an address without a listener."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from reput_client.blocking import PullConsumer
from reput_client.errors import ConnectFailed
from support.broker_process import free_port


class OwnPort(socket.socket):
    """A socket that gets the very port that it connects to, as can happen on one machine."""

    def connect_ex(self, address: Any) -> int:
        """Connect to itself."""
        self.bind(address)
        return super().connect_ex(address)


def test_a_socket_connected_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", OwnPort)
    with pytest.raises(ConnectFailed, match="refused"), PullConsumer(f"127.0.0.1:{free_port()}", group="g"):
        pass
