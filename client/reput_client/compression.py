"""Bodies that a producer compressed (RocketMQ: CompressorFactory)."""

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
"""The largest body that is inflated: a few hostile kilobytes must not fill the memory."""
INFLATED_TOTAL_MAX = 256 * 1024 * 1024
"""How much the bodies of one pull of columns may inflate to together, unless the caller says otherwise."""


def compression_method(sys_flag: int) -> str | None:
    """Return the name of the method that a record's sysFlag says its body has, or None."""
    if not sys_flag & MessageSysFlag.COMPRESSED:
        return None
    kind = sys_flag & MessageSysFlag.COMPRESSION_MASK
    return _METHODS.get(kind, f"unknown method {kind >> 8}")


def inflate(data: Buffer) -> bytes:
    """Return the body that zlib made `data` of.

    Raises:
        ValueError: it is no zlib stream, is cut short, or is larger than `INFLATED_BYTES_MAX`.
    """
    decompressor = zlib.decompressobj()
    try:
        body = decompressor.decompress(data, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(f"body cannot be decompressed: {error}") from None
    if decompressor.unconsumed_tail:
        raise ValueError(f"body is larger than {INFLATED_BYTES_MAX} bytes when decompressed")
    if not decompressor.eof:
        raise ValueError("compressed body is cut short")
    return body
