"""Reading and writing numbers and bytes in a buffer, for the interpreter.

Compiled modules use the functions of the same names in raw.pxd, which handle single bytes; nothing else in the kernel
exists twice. Callers check positions.
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
    """Return the big-endian signed 2-byte number at `at`."""
    return _I16(data, at)[0]  # type: ignore[no-any-return]


def i32(data: Buffer, at: int) -> int:
    """Return the big-endian signed 4-byte number at `at`."""
    return _I32(data, at)[0]  # type: ignore[no-any-return]


def u32(data: Buffer, at: int) -> int:
    """Return the big-endian unsigned 4-byte number at `at`."""
    return _U32(data, at)[0]  # type: ignore[no-any-return]


def i64(data: Buffer, at: int) -> int:
    """Return the big-endian signed 8-byte number at `at`."""
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
    """Write 16 bits as four upper-case hex digits."""
    data[at : at + 4] = b"%04X" % value


def copy(source: Buffer, start: int, size: int, target: bytearray | memoryview, at: int) -> int:
    """Copy `size` bytes from `start` on to `target[at:]`; return where they end."""
    target[at : at + size] = source[start : start + size]
    return at + size


def put(source: Buffer, target: bytearray | memoryview, at: int, stop: int) -> int:
    """Copy a whole bytes-like object to `target[at:stop]`; return where it ends.

    Raises:
        BufferError: it does not fit, for example because its `len` is not its size in bytes.
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
    """Return whether `text` is at `at`, and ends before `stop`."""
    return stop - at >= len(text) and data[at : at + len(text)] == text


def same(data: Buffer, one: int, other: int, size: int) -> bool:
    """Return whether two places have the same bytes."""
    return data[one : one + size] == data[other : other + size]


def equal(data: Buffer, at: int, other: Buffer, start: int, size: int) -> bool:
    """Return whether two buffers have the same bytes at these places."""
    return bytes(data[at : at + size]) == bytes(other[start : start + size])


def find(data: Buffer, byte: int, at: int, stop: int) -> int:
    """Return the position of `byte` in `[at, stop)`, or `stop`."""
    if isinstance(data, memoryview):  # has no search
        return at + find(bytes(data[at:stop]), byte, 0, stop - at)
    found = data.find(byte, at, stop)
    return stop if found < 0 else found


def searchable(buffer: Buffer) -> Buffer:
    """Return the buffer as `find` can search it: the interpreter searches only bytes, so views are copied."""
    return buffer if isinstance(buffer, bytes | bytearray) else bytes(buffer)


def is_ascii(data: Buffer, start: int, stop: int) -> bool:
    """Return whether no byte in `[start, stop)` is above 0x7F."""
    return bytes(data[start:stop]).isascii()


def ends_with_checksum(data: Buffer, start: int, stop: int) -> bool:
    """Return whether the properties in `[start, stop)` end with a whole-record checksum, even with damaged digits."""
    at = stop - 20
    return (
        at >= start
        and data[stop - 1] == 2
        and data[at : at + 9] == b"__CRC32#\x01"
        and (at == start or data[at - 1] == 2)
    )


def crc(data: Buffer, start: int, stop: int, value: int) -> int:
    """Return the CRC-32 of `[start, stop)` like `zlib.crc32`; `value` is that of the preceding bytes."""
    return crc32(data[start:stop], value)


def crc31(data: Buffer, start: int, stop: int) -> int:
    """Return the CRC-32 of `[start, stop)` with the top bit cleared, a record's only checksum."""
    return crc32(data[start:stop]) & 0x7FFF_FFFF


def zeros(template: array[int], count: int) -> array[int]:
    """Return an array of the template's type with `count` zeros."""
    return array(template.typecode, bytes(template.itemsize * count))


def room(template: array[int], count: int) -> array[int]:
    """Return an array of the template's type with `count` numbers, each of which the caller writes or removes."""
    return zeros(template, count)


def bytes_room(size: int) -> bytearray:
    """Return `size` bytes, each of which the caller writes or removes."""
    return bytearray(size)
