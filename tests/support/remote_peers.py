"""A network in memory for requests of a broker to other servers. It replaces `trio.open_tcp_stream`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import RESPONSE_FLAG, Header, HeaderType, Value


class Network:
    """What replaces TCP: every connection is a pair of memory streams, and the peer's ends are listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peers: list[Peer] = []
        self.dialled: list[tuple[str, int]] = []
        self.servers: dict[str, Server] = {}
        monkeypatch.setattr(trio, "open_tcp_stream", self._open)

    async def _open(self, host: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.dialled.append((host, port))
        ours, theirs = trio.testing.memory_stream_pair()
        self.peers.append(Peer(theirs))
        server = self.servers.get(f"{host}:{port}")
        if server is not None:
            server.accept(self.peers[-1])
        return ours


class Peer:
    """The remote end of a connection."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self.stream = stream
        self._reader = FrameReader()

    async def requests(self, count: int) -> list[tuple[Header, bytes]]:
        found: list[tuple[Header, bytes]] = []
        while len(found) < count:
            data = await self.stream.receive_some()
            assert data, "the connection ended"
            found += [(decode_header(kind, head), bytes(body)) for kind, head, body in self._reader.receive_data(data)]
        return found

    async def answer(
        self,
        header: Header,
        body: bytes = b"",
        *,
        code: int = 0,
        flag: int = RESPONSE_FLAG,
        ext: Mapping[str, Value] | None = None,
    ) -> None:
        reply = Header(code, header.opaque, flag, "said", dict(ext or {"a": "b"}))
        await self.stream.send_all(encode_frame(reply, HeaderType.JSON, body))


@dataclass
class Said:
    """What a server answers to one request code; nothing at all if `code` is None."""

    code: int | None = 0
    ext: Mapping[str, Value] = field(default_factory=dict)
    body: bytes = b""


class Server:
    """A server of the network: it answers every request as the test says.

    Attributes:
        requests: every request as it came: its time, header and body.
        said: the answers by request code; others are answered with success.
        is_down: connections are refused.
    """

    def __init__(self, network: Network, address: str, nursery: trio.Nursery) -> None:
        self.requests: list[tuple[float, Header, bytes]] = []
        self.said: dict[int, Said] = {}
        self.is_down = False
        self._peers: list[Peer] = []
        self._nursery = nursery
        network.servers[address] = self

    def accept(self, peer: Peer) -> None:
        if self.is_down:
            raise ConnectionRefusedError(111, "Connection refused")
        self._peers.append(peer)
        self._nursery.start_soon(self._serve, peer)

    async def hang_up(self) -> None:
        """Close all connections."""
        for peer in self._peers:
            await peer.stream.aclose()
        self._peers.clear()

    def count(self, code: int) -> int:
        return len(self.of(code))

    def of(self, code: int) -> list[tuple[float, Header, bytes]]:
        """The requests with this code."""
        return [request for request in self.requests if request[1].code == code]

    async def _serve(self, peer: Peer) -> None:
        try:
            while True:
                for header, body in await peer.requests(1):
                    self.requests.append((trio.current_time(), header, body))
                    said = self.said.get(header.code, Said())
                    if said.code is not None:
                        await peer.answer(header, said.body, code=said.code, ext=said.ext or {"": ""})
        except (AssertionError, trio.ClosedResourceError, trio.BrokenResourceError):
            pass
