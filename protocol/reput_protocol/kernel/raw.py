"""Reading and writing numbers and bytes in a buffer, as an interpreter does it best.

Compiled modules have the functions of the same names in raw.pxd instead, which take bytes one by one; nothing else
in the kernel exists twice. No function checks a position: whoever calls it has.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Final
from zlib import crc32

from reput_protocol.buffers import Buffer

_I16: Final = Struct(">h").unpack_from
_I32: Final = Struct(">i").unpack_from
_I64: Final = Struct(">q").unpack_from
_U32: Final = Struct(">I").unpack_from
_PUT_U16: Final = Struct(">H").pack_into
_PUT_I32: Final = Struct(">i").pack_into
_PUT_I64: Final = Struct(">q").pack_into


def i16(data: Buffer, at: int) -> int:
    """Return the signed number of 2 bytes at `at`, the most significant first."""
    return _I16(data, at)[0]  # type: ignore[no-any-return]


def i32(data: Buffer, at: int) -> int:
    """Return the signed number of 4 bytes at `at`."""
    return _I32(data, at)[0]  # type: ignore[no-any-return]


def u32(data: Buffer, at: int) -> int:
    """Return the unsigned number of 4 bytes at `at`."""
    return _U32(data, at)[0]  # type: ignore[no-any-return]


def i64(data: Buffer, at: int) -> int:
    """Return the signed number of 8 bytes at `at`."""
    return _I64(data, at)[0]  # type: ignore[no-any-return]


def put_i16(data: bytearray | memoryview, at: int, value: int) -> None:
    """Write the low 2 bytes of a number."""
    _PUT_U16(data, at, value & 0xFFFF)


def put_i32(data: bytearray | memoryview, at: int, value: int) -> None:
    """Write a number as 4 bytes."""
    _PUT_I32(data, at, value)


def put_i64(data: bytearray | memoryview, at: int, value: int) -> None:
    """Write a number as 8 bytes."""
    _PUT_I64(data, at, value)


def put_hex(data: bytearray | memoryview, at: int, value: int) -> None:
    """Write 16 bits as four upper-case digits."""
    data[at : at + 4] = b"%04X" % value


def copy(source: Buffer, start: int, size: int, target: bytearray | memoryview, at: int) -> int:
    """Copy `size` bytes from `start` on to `target[at:]` and return where they end there."""
    target[at : at + size] = source[start : start + size]
    return at + size


def put(source: Buffer, target: bytearray | memoryview, at: int, stop: int) -> int:
    """Copy a whole bytes-like object to `target[at:stop]` and return where it ends.

    Raises:
        BufferError: it is too long, as one whose `len` is not its bytes.
    """
    size = memoryview(source).nbytes
    if size > stop - at:
        raise BufferError(f"{size} bytes are copied to where there is room for {stop - at}")
    target[at : at + size] = source
    return at + size


def copied(data: Buffer, start: int, size: int) -> bytes:
    """Return a copy of `size` bytes."""
    return bytes(data[start : start + size])


def has(data: Buffer, at: int, stop: int, text: bytes) -> bool:
    """Tell whether `text` is at `at`, before `stop`."""
    return stop - at >= len(text) and data[at : at + len(text)] == text


def same(data: Buffer, one: int, other: int, size: int) -> bool:
    """Tell whether the same bytes are at two places."""
    return data[one : one + size] == data[other : other + size]


def find(data: Buffer, byte: int, at: int, stop: int) -> int:
    """Return where `byte` is in `[at, stop)`; `stop` if it is not there."""
    if isinstance(data, memoryview):  # cannot be searched
        return at + find(bytes(data[at:stop]), byte, 0, stop - at)
    found = data.find(byte, at, stop)
    return stop if found < 0 else found


def searchable(buffer: Buffer) -> Buffer:
    """Return a buffer in which `find` searches: an interpreter can search bytes only, and copies a view of some."""
    return buffer if isinstance(buffer, bytes | bytearray) else bytes(buffer)


def is_ascii(data: Buffer, start: int, stop: int) -> bool:
    """Tell whether no byte of `[start, stop)` is above 0x7F."""
    return bytes(data[start:stop]).isascii()


def ends_with_checksum(data: Buffer, start: int, stop: int) -> bool:
    """Tell whether the properties text `[start, stop)` ends with the unit of a whole-record checksum.

    Its digits may be damaged.
    """
    at = stop - 20
    return (
        at >= start
        and data[stop - 1] == 2
        and data[at : at + 9] == b"__CRC32#\x01"
        and (at == start or data[at - 1] == 2)
    )


def crc(data: Buffer, start: int, stop: int, value: int) -> int:
    """Return the CRC-32 of `[start, stop)`, as `zlib.crc32` computes it; `value` is that of the bytes before."""
    return crc32(data[start:stop], value)


def crc31(data: Buffer, start: int, stop: int) -> int:
    """Return the CRC-32 of `[start, stop)` with the top bit cleared, the only checksum of a record."""
    return crc32(data[start:stop]) & 0x7FFF_FFFF


def zeros(template: array[int], count: int) -> array[int]:
    """Return an array of the template's type, of `count` integers that are 0."""
    return array(template.typecode, bytes(template.itemsize * count))
