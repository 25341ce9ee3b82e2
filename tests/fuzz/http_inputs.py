"""Input of an HTTP port: requests, many at once, upgrades, HTTP/2, WebSocket, TLS, and damage to all of it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fuzz.mutations import mutated

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PATHS = (
    "/livez",
    "/livez",
    "/readyz",
    "/readyz?verbose",
    "/status",
    "/none",
    "/livez/../metrics",
    "/metrics/rocketmq",
    "/",
    "/console/",
    "/console/..%2fapp.py",
    "/console/events",
    "/console/api/session",
    "/console/api/topics?search=%ff%00",
    "/console/api/browse?topic=x&queue=99999999999999999999999&start=next&place=*",
    "/console/api/browse?topic=*&path=a[*].b=1&sql=a%20IN%20(&start=previous&place=x*0.1.99999999999999999999",
    "/console/api/export?ids=,%00,7F00000100002A9F00000000FFFFFFFF",
    "/console/api/history?begin=-9999999999999999999&end=4611686018427387904&rows=0&names=1",
    "/console/api/brokers?begin=4611686018427387904&member=%00%ff",
    "/console/api/login",
    "/console/api/actions/cancel-delayed",
    "/console/api/offered?place=topic&name=%ff",
    "/%00%ff",
    "//",
    "*",
)
_METHODS = ("GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "CONNECT", "PUT", "TRACE", "PRI", "get")
_VERSIONS = ("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.9")
_HOSTS = ("x", "127.0.0.1:10913", "[::1]", "localhost", "evil.example", "", "a b", "[", "x, y", "\xff")
_HEADERS = (
    "Connection: close",
    "Connection: keep-alive",
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "Upgrade: websocket",
    "HTTP2-Settings: A",
    "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Content-Length: 5",
    "Content-Length: 5, 5",
    "Content-Length: 99999999999999999999999",
    "Content-Length: -1",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: identity",
    "Expect: 100-continue",
    "Accept: application/openmetrics-text; version=1.0.0; q=x",
    "Host: y",
    "Origin: http://evil.example",
    "Sec-Fetch-Site: cross-site",
    "X-Reput-Console: 1",
    "Cookie: reput_console_0=\xff; reput_console_0; =",
    "X: " + "a" * 9000,
    " folded: line",
    "Bad Name: x",
    ": nameless",
    "X:\0",
)


def request(rng: Random) -> bytes:
    """A request that is mostly right."""
    lines = [f"{rng.choice(_METHODS)} {rng.choice(_PATHS)} {rng.choice(_VERSIONS)}"]
    if rng.random() < 0.9:
        lines.append(f"Host: {rng.choice(_HOSTS) if rng.random() < 0.3 else 'x'}")
    lines += rng.choices(_HEADERS, k=rng.choice((0, 0, 1, 1, 2, 3, 6)))
    ending = "\r\n" if rng.random() < 0.95 else "\n"
    return (ending.join(lines) + 2 * ending).encode("latin-1") + rng.choice((b"", b"", b"hello", b"xx"))


def pipelined(rng: Random) -> bytes:
    """Several requests, also behind one that is the last."""
    return b"".join(request(rng) for _ in range(rng.randint(2, 12)))


def chunked(rng: Random) -> bytes:
    """A request with a body in chunks, some of them nonsense."""
    sizes = (b"0", b"1", b"5", b"ff", b"-1", b"g", b"", b"ffffffffffffffff", b"0" * 40, b"5;x=y", b"5 ;")
    head = b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [
        rng.choice(sizes) + b"\r\n" + rng.randbytes(rng.choice((0, 1, 5, 255))) + b"\r\n"
        for _ in range(rng.randint(0, 6))
    ]
    return head + b"".join(chunks) + rng.choice((b"0\r\n\r\n", b"0\r\nA: b\r\n\r\n", b""))


def large(rng: Random) -> bytes:
    """A head of many lines, or a body that is about as large as one may be."""
    if rng.random() < 0.5:
        return b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * rng.choice((90, 110, 1900)) + b"\r\n"
    size = rng.choice((1, 1000, 65_536, 65_537))
    return f"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode() + b"a" * size


def http2(rng: Random) -> bytes:
    """The preface of HTTP/2, or an upgrade to it, and frames."""
    upgrade = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    begin = rng.choice((PREFACE, upgrade + b"HTTP2-Settings: AAMAAABk\r\n\r\n" + PREFACE, b""))
    frames = []
    for _ in range(rng.choice((1, 3, 10, 100))):
        payload = rng.randbytes(rng.choice((0, 4, 5, 8, 40)))
        kind, stream = rng.randrange(11), rng.randrange(1 << 31)
        frames.append(len(payload).to_bytes(3) + bytes((kind, rng.randrange(256))) + stream.to_bytes(4) + payload)
    return begin + b"".join(frames)


def websocket(rng: Random) -> bytes:
    """A request to speak WebSocket, and frames of it."""
    head = (
        b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    frames = [
        bytes((rng.randrange(256), 0x80 | rng.randrange(128))) + rng.randbytes(rng.randint(4, 40))
        for _ in range(rng.randint(0, 5))
    ]
    return head + b"".join(frames)


def half(rng: Random) -> bytes:
    """A request that ends early."""
    whole = request(rng)
    return whole[: rng.randrange(len(whole) + 1)]


def noise(rng: Random) -> bytes:
    """Bytes of no protocol, or of TLS or of the broker's own."""
    begin = rng.choice((b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00\x00\x00\x40\x00", b"\r\n", b"\n"))
    return begin + rng.randbytes(rng.choice((0, 1, 20, 300, 9000)))


def metrics(rng: Random) -> bytes:
    """The one page that takes long, seldom."""
    if rng.random() < 0.02:
        return b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" + half(rng)
    return half(rng)


_SORTS: tuple[Callable[[Random], bytes], ...] = (
    request,
    request,
    pipelined,
    chunked,
    large,
    http2,
    websocket,
    half,
    noise,
    metrics,
)


def http_input(rng: Random) -> bytes:
    """Return what one connection sends."""
    data = rng.choice(_SORTS)(rng)
    return mutated(rng, data) if rng.random() < 0.5 else data
