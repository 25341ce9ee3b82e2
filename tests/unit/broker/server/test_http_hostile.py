"""Bytes that are not HTTP/1.1, or not only, at the HTTP port: the broker continues."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker import Broker, BrokerConfig

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PRIORITY = b"\x00\x00\x05\x02\x00" + (1).to_bytes(4) + b"\x00\x00\x00\x00\x10"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
H2C = (
    b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: %s\r\n\r\n"
)
WEBSOCKET = (
    b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
HOSTILE = {
    "h2c with settings that are none": [H2C % b"A"],
    "h2c": [H2C % b"AAMAAABk", PREFACE],
    "HTTP/2 and 2,000 priorities": [
        PREFACE + SETTINGS + b"".join(PRIORITY[:5] + (2 * n + 1).to_bytes(4) + PRIORITY[9:] for n in range(2000))
    ],
    "a request behind the last": [LIVEZ + LIVEZ] * 3,
    "two bytes behind HTTP/1.0": [b"GET /livez HTTP/1.0\r\n\r\n", b"xx"],
    "websocket": [WEBSOCKET, b"\x81\x85\x00\x00\x00\x00hello"],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_bytes_end_the_broker(name: str, tmp_path: Path) -> None:
    store: dict[str, Any] = {"commit_log_file_size": 1 << 20, "index_slots": 100, "index_entries": 400}
    config = BrokerConfig(data_dir=tmp_path / "data", port=0, http_port=0, store=store)

    async def send(address: tuple[str, int], parts: list[bytes]) -> None:
        stream = await trio.open_tcp_stream(*address)
        with suppress(trio.BrokenResourceError):
            for part in parts:
                await stream.send_all(part)
                await trio.sleep(0.01)
        await trio.aclose_forcefully(stream)

    async def main() -> bytes:
        with trio.fail_after(30):
            async with Broker(config) as broker:
                assert broker.http_address is not None
                host, _, port = broker.http_address.rpartition(":")
                for _ in range(5):
                    await send((host, int(port)), HOSTILE[name])
                stream = await trio.open_tcp_stream(host, int(port))
                async with stream:
                    await stream.send_all(LIVEZ)
                    return b"".join([bytes(part) async for part in stream])

    assert trio.run(main).endswith(b"ok\n")
