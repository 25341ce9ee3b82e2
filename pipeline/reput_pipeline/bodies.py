"""Bodies that a producer has compressed, made readable again."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from reput_client.compression import INFLATED_BYTES_MAX, inflate
from reput_protocol.codes import MessageSysFlag
from reput_protocol.record_columns import IntArray, RecordColumns

_CODECS: Final = {MessageSysFlag.COMPRESSION_LZ4: "lz4", MessageSysFlag.COMPRESSION_ZSTD: "zstd"}
_ZLIB: Final = (0, MessageSysFlag.COMPRESSION_ZLIB)


def compressed_rows(columns: RecordColumns) -> IntArray:
    """Return the rows whose body is compressed."""
    return np.flatnonzero(columns.sys_flag & MessageSysFlag.COMPRESSED)


def decompress(data: bytes, sys_flag: int) -> bytes:
    """Return the body that a producer compressed as `sys_flag` says (RocketMQ: CompressorFactory).

    Raises:
        ValueError: it is not what it says, or larger than `INFLATED_BYTES_MAX`.
    """
    method = sys_flag & MessageSysFlag.COMPRESSION_MASK
    if method in _ZLIB:
        return inflate(data)
    codec = _CODECS.get(method)
    if codec is None:
        raise ValueError(f"body is compressed with an unknown method, {method >> 8}")
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            body: bytes = stream.read(INFLATED_BYTES_MAX + 1)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"body cannot be decompressed with {codec}: {error}") from None
    if len(body) > INFLATED_BYTES_MAX:
        raise ValueError(f"body is larger than {INFLATED_BYTES_MAX} bytes when decompressed")
    return body
