"""A message's two ids: the offset id, by its place, and the unique id, by its producer; network addresses in records
and ids: address bytes, then a 32-bit port.
"""

from __future__ import annotations

import ipaddress
import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple, Self, overload

from reput_protocol.buffers import Buffer
from reput_protocol.errors import InvalidMessage

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


_OFFSET: Final = struct.Struct(">q")
_IDENTITY: Final = struct.Struct(">Hi")
_CLOCK_STEP_MAX_MS: Final = 1_000_000


def offset_message_id(host: Host, physical_offset: int) -> str:
    """Return the id of the record at `physical_offset` of the broker `host` (RocketMQ: MessageDecoder.createMessageId).

    Upper-case hex of the address, the 32-bit port and the 64-bit offset: 32 digits for IPv4, 56 for IPv6.
    """
    return offset_message_id_of(host.packed(), physical_offset)


def offset_message_id_of(host: bytes, physical_offset: int) -> str:
    """Return the offset id for a packed host, as in the record."""
    return (host + _OFFSET.pack(physical_offset)).hex().upper()


def decode_offset_message_id(message_id: str) -> tuple[Host, int]:
    """Return the broker's address and the physical offset in an offset id.

    Raises:
        InvalidMessage: it does not have 32 or 56 hex digits.
    """
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if len(message_id) != 2 * len(data) or len(data) - _OFFSET.size not in (HOST4_BYTES, HOST6_BYTES):
        raise InvalidMessage(
            f"{message_id[:80]!r} is not an offset message id; it has 32 hex digits (IPv4) or 56 (IPv6)"
        )
    return Host.unpack(data[: -_OFFSET.size]), _OFFSET.unpack(data[-_OFFSET.size :])[0]


_RUN_IDS_MAX: Final = 0x1_0000
"""So many ids with one prefix are distinct; no block has more records with ids."""


@dataclass(eq=False, repr=False, slots=True)
class IdRun(Sequence[str]):
    """Consecutive unique ids: a prefix, then numbers in four upper-case hex digits; 0000 follows FFFF.

    Each is formatted on access.

    Attributes:
        prefix: of all ids.
        first: the number of the first id.
    """

    prefix: str
    first: int
    _count: int

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            prefix, first = self.prefix, self.first
            return [prefix + "%04X" % (first + number & 0xFFFF) for number in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"there are {self._count} ids, none of number {index}")
        number = self.first + (index if index >= 0 else index + self._count)
        return self.prefix + "%04X" % (number & 0xFFFF)


class UniqueIdGenerator:
    """Generates the ids that producers write into `UNIQ_KEY` (RocketMQ: MessageClientIDSetter).

    Upper-case hex of the address (4 or 16 bytes), the process id (16 bits), a number that separates generators of one
    process (32 bits), the milliseconds since the local month began (32 bits) and a counter (16 bits), which keeps up to
    65536 ids of one millisecond distinct. Threads may share a generator; a forked child must create its own.
    """

    __slots__ = ("_clock_ms", "_count", "_identity", "_month_end_ms", "_month_start_ms", "_numbers", "_prefix")

    def __init__(self, ip: bytes, pid: int, class_hash: int, clock_ms: Callable[[], int]) -> None:
        """Use the 4 or 16 bytes of `ip` and the low bits of `pid` and `class_hash`; `clock_ms` returns the time."""
        class_hash &= 0xFFFF_FFFF
        signed = class_hash - 0x1_0000_0000 if class_hash & 0x8000_0000 else class_hash
        self._identity = (ip + _IDENTITY.pack(pid & 0xFFFF, signed)).hex().upper()
        self._clock_ms = clock_ms
        self._numbers = itertools.count()
        self._count = self._numbers.__next__
        self._month_start_ms = self._month_end_ms = 0
        # One tuple, so that no thread sees a millisecond with another's prefix.
        self._prefix: tuple[int, str] = (-1, "")

    @property
    def id_size(self) -> int:
        """Length of an id in characters."""
        return len(self._identity) + 12

    def next(self) -> str:
        """Return the next id: 32 digits, or 56 with an IPv6 address."""
        return self._prefix_now() + "%04X" % (self._count() & 0xFFFF)

    def next_run(self, count: int) -> IdRun:
        """Return the next `count` ids, at most 65536, unformatted."""
        assert count <= _RUN_IDS_MAX, "the ids of a run are distinct"
        # One call into C, atomic for other threads: numbers are consecutive.
        numbers = list(itertools.islice(self._numbers, count))
        return IdRun(self._prefix_now(), numbers[0] & 0xFFFF if numbers else 0, count)

    def _prefix_now(self) -> str:
        now_ms = self._clock_ms()
        prefix_ms, prefix = self._prefix
        if now_ms != prefix_ms:
            since_month_start = now_ms - self._month_start_ms
            if now_ms >= self._month_end_ms or since_month_start <= -_CLOCK_STEP_MAX_MS:
                self._start_month(now_ms)
                since_month_start = now_ms - self._month_start_ms
            # A clock set back slightly across the start of the month counts as that start.
            prefix = f"{self._identity}{max(since_month_start, 0) & 0xFFFF_FFFF:08X}"
            self._prefix = (now_ms, prefix)
        return prefix

    def _start_month(self, now_ms: int) -> None:
        start = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(following.timestamp() * 1000)
