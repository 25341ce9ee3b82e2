"""The header that a proxy puts before the first byte of a connection (PROXY protocol, versions 1 and 2).

https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from typing import Final, TypeAlias

import trio

from reput_protocol.errors import ReputError

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_V2_BYTES: Final = 16
_V2_MORE_MAX: Final = 4096
_V1_BYTES_MAX: Final = 107
_LOCAL, _PROXY = 0x20, 0x21
_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}  # by family and protocol: TCP over IPv4 and over IPv6


class ProxyHeaderWrong(ReputError):
    """A trusted proxy has sent no valid header."""


def is_trusted(host: str, networks: Collection[Network]) -> bool:
    """Whether connections from this address begin with a header."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in networks)


async def read_header(accepted: socket.socket) -> tuple[str, int] | None:
    """Read the header and nothing after it; return the client's address and port, None if the proxy does not say.

    The caller limits the time.

    Raises:
        ProxyHeaderWrong: there is no valid one.
        OSError, EOFError: the connection has ended.
    """
    first = await _take(accepted, 1)
    if first == _SIGNATURE[:1]:
        head = first + await _take(accepted, _V2_BYTES - 1)
        size = int.from_bytes(head[14:])
        if not head.startswith(_SIGNATURE) or head[12] not in (_LOCAL, _PROXY) or size > _V2_MORE_MAX:
            raise ProxyHeaderWrong(f"it begins with {head!r}")
        more = await _take(accepted, size)
        return None if head[12] == _LOCAL else _source_of_v2(head[13], more)
    line = bytearray(first)
    while not line.endswith(b"\r\n"):
        if len(line) == _V1_BYTES_MAX or not b"PROXY ".startswith(line[:6]):
            raise ProxyHeaderWrong(f"it begins with {bytes(line)!r}")
        line += await _take(accepted, 1)
    return _source_of_v1(bytes(line))


def _source_of_v2(family: int, more: bytes) -> tuple[str, int] | None:
    size = _ADDRESS_BYTES.get(family)
    if size is None:
        return None
    if len(more) < 2 * size + 4:
        raise ProxyHeaderWrong(f"its addresses have {len(more)} bytes")
    address = ipaddress.ip_address(more[:size])
    return _plain(address), int.from_bytes(more[2 * size : 2 * size + 2])


def _source_of_v1(line: bytes) -> tuple[str, int] | None:
    try:
        _, family, *rest = line.decode("ascii").removesuffix("\r\n").split(" ")
        if family == "UNKNOWN":
            return None
        source, _, port, _ = rest
        if family not in ("TCP4", "TCP6") or not port.isdigit() or int(port) > 65535:
            raise ValueError
        return _plain(ipaddress.ip_address(source)), int(port)
    except ValueError:
        raise ProxyHeaderWrong(f"it begins with {line!r}") from None


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return the text; an IPv4 address that is mapped into IPv6 is that IPv4 address."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


async def _take(accepted: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes; what follows stays to be read."""
    data = b""
    while len(data) < size:
        try:
            piece = accepted.recv(size - len(data))
        except BlockingIOError:
            await trio.lowlevel.wait_readable(accepted)
            continue
        if not piece:
            raise EOFError
        data += piece
    return data
