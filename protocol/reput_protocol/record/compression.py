"""Bodies that their producer compressed."""

from __future__ import annotations

import zlib

from reput_protocol.buffers import Buffer
from reput_protocol.codes import MessageSysFlag

_METHODS = {
    0: "zlib",
    MessageSysFlag.COMPRESSION_LZ4: "LZ4",
    MessageSysFlag.COMPRESSION_ZSTD: "Zstandard",
    MessageSysFlag.COMPRESSION_ZLIB: "zlib",
}
INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""Of a decompressed body, so that a few hostile kilobytes cannot fill the memory."""


def compression_method(sys_flag: int) -> str | None:
    """Return the name of the compression method in a record's sysFlag, or None."""
    if not sys_flag & MessageSysFlag.COMPRESSED:
        return None
    kind = sys_flag & MessageSysFlag.COMPRESSION_MASK
    return _METHODS.get(kind, f"unknown method {kind >> 8}")


def inflate(data: Buffer) -> bytes:
    """Return the body that zlib compressed to `data`.

    Raises:
        ValueError: not a zlib stream, truncated, or exceeds `INFLATED_BYTES_MAX`.
    """
    decompressor = zlib.decompressobj()
    try:
        body = decompressor.decompress(data, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(f"body cannot be decompressed: {error}") from None
    if decompressor.unconsumed_tail:
        raise ValueError(f"body is larger than {INFLATED_BYTES_MAX} bytes when decompressed")
    if not decompressor.eof:
        raise ValueError("compressed body is truncated")
    return body
