"""Network addresses in records and message ids: address bytes, then a 32-bit port."""

from __future__ import annotations

import ipaddress
import struct
from functools import lru_cache
from typing import Final, NamedTuple, Self

from reput_protocol.buffers import Buffer

HOST4_BYTES: Final = 8
HOST6_BYTES: Final = 20
_HOST4: Final = struct.Struct(">BBBBi")
_PORT: Final = struct.Struct(">i")


class Host(NamedTuple):
    """An IPv4 or IPv6 address and a port."""

    ip: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `ip:port` or `[ipv6]:port`.

        Raises:
            ValueError: no port, or not an IP address. Names are not resolved.
        """
        ip, separator, port = text.rpartition(":")
        if not separator or not port.isdecimal() or int(port) > 65_535:
            raise ValueError(f"{text!r} has no port; write it as 10.0.0.1:10911 or [::1]:10911")
        return cls(str(ipaddress.ip_address(ip.removeprefix("[").removesuffix("]"))), int(port))

    @classmethod
    def unpack(cls, data: Buffer) -> Self:
        """Read 8 (IPv4) or 20 (IPv6) bytes.

        Raises:
            ValueError: any other length.
        """
        if len(data) not in (HOST4_BYTES, HOST6_BYTES):
            raise ValueError(f"a host has {HOST4_BYTES} or {HOST6_BYTES} bytes, not {len(data)}")
        if len(data) == HOST4_BYTES:
            a, b, c, d, port = _HOST4.unpack(data)
            return cls(f"{a}.{b}.{c}.{d}", port)  # three times as fast as ipaddress
        return cls(str(ipaddress.ip_address(bytes(data[:-4]))), _PORT.unpack(data[-4:])[0])

    @property
    def is_ipv6(self) -> bool:
        """Whether the address takes 16 bytes."""
        return ":" in self.ip

    def packed(self) -> bytes:
        """Return the 8 or 20 bytes.

        Raises:
            ValueError: `ip` is not an address, or the port exceeds 32 bits.
        """
        return _packed(self.ip, self.port)

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if self.is_ipv6 else f"{self.ip}:{self.port}"


@lru_cache(maxsize=1024)
def _packed(ip: str, port: int) -> bytes:
    try:
        return ipaddress.ip_address(ip).packed + _PORT.pack(port)
    except struct.error:
        raise ValueError(f"port {port} does not fit into 32 bits") from None


ZERO_HOST: Final = Host("0.0.0.0", 0)


def born_host_bytes(ip: str, port: int) -> bytes:
    """Return the 8 bytes that a stored record has for the peer `ip`.

    An IPv4 address is kept, one mapped into IPv6 unwrapped; any other becomes 0.0.0.0, because some RocketMQ clients
    read every host as 8 bytes.
    """
    address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or ipaddress.IPv4Address(0)
    return address.packed + _PORT.pack(port)
