"""Connections that begin something and do not end it, and headers of a proxy that is none."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Final

from reput_protocol.codes import RequestCode
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import Header, HeaderType
from scan.findings import Finding
from scan.requests import Connect

ENDS_S: Final = 2.0
"""The limit that the broker of the scan has for a handshake and for a frame; see `run.py`."""
_COUNT: Final = 300
_SLACK_S: Final = 20.0
_HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
_PROXY_V2: Final = b"\r\n\r\n\0\r\nQUIT\n"


def scan_half_open(port: int, connect: Connect, beginnings: dict[str, bytes]) -> Iterator[Finding]:
    """Hold connections open at once; the broker closes each by itself, and serves others meanwhile."""
    for what, data in beginnings.items():
        finding = Finding(port, f"{_COUNT} connections at once, each with {what}")
        with ExitStack() as stack:
            ends = [stack.enter_context(connect()) for _ in range(_COUNT)]
            started_at = time.monotonic()
            for end in ends:
                with suppress(OSError):
                    end.sendall(data)
            closed, held = _until_closed(ends, ENDS_S + _SLACK_S)
            took_s = time.monotonic() - started_at
        finding.note(f"closed by the broker (the last after {took_s:.1f} s)", count=closed)
        if held:
            finding.note(f"open after {took_s:.0f} s", count=held, wrong=True)
        yield finding


BEGINNINGS: Final = {
    "the first bytes of a TLS handshake": _HELLO,
    "half a frame": b"\0\0\1\0\0\0\0",
    "half a PROXY header": b"PROXY TCP4 127.0.0.1",
}


def scan_proxy_headers(port: int, connect: Connect) -> Finding:
    """Claim to be the proxy of a client on loopback. The connection is refused, and the request is not read."""
    finding = Finding(port, "a PROXY header of version 1 or 2 that names 127.0.0.1, then a request")
    request = encode_frame(Header(int(RequestCode.GET_BROKER_CLUSTER_INFO), 7), HeaderType.JSON)
    addresses = socket.inet_aton("127.0.0.1") * 2 + struct.pack(">HH", 1, port)
    for header in (
        f"PROXY TCP4 127.0.0.1 127.0.0.1 1 {port}\r\n".encode(),
        _PROXY_V2 + struct.pack(">BBH", 0x21, 0x11, len(addresses)) + addresses,
        _PROXY_V2 + struct.pack(">BBH", 0x20, 0, 0),
    ):
        got = b""
        with suppress(OSError), connect() as end:
            end.sendall(header + request)
            end.shutdown(socket.SHUT_WR)
            while part := end.recv(1 << 16):
                got += part
        is_refused = not got or b"MALFORMED" in got or b"TOO_LARGE" in got or got.startswith(b"HTTP/1.1 4")
        finding.expect(is_refused and b'"opaque":7' not in got, "refused and closed" if is_refused else repr(got))
    return finding


def _until_closed(ends: list[socket.socket], seconds: float) -> tuple[int, int]:
    """Wait until the peer has closed all of these; return how many it has closed, and how many not."""
    selector = selectors.DefaultSelector()
    for end in ends:
        end.setblocking(False)
        selector.register(end, selectors.EVENT_READ)
    until, closed = time.monotonic() + seconds, 0
    while closed < len(ends) and time.monotonic() < until:
        for key, _ in selector.select(0.2):
            readable = key.fileobj
            assert isinstance(readable, socket.socket)
            try:
                data = readable.recv(1 << 16)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                selector.unregister(readable)
                closed += 1
    return closed, len(ends) - closed
