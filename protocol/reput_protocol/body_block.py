"""Blocks of bodies: what `encode_put_block` makes of messages, without an object for each of them.

Messages that are sent together tend to differ in nothing but body and unique id. Then the heads of all records form a
table, and so do the ends with topic and properties; both are filled column by column, and the bodies go between their
rows as they are. Where tags or keys differ in length, the table goes as far as the unique id, and the rest of each text
follows its row as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput_protocol.buffers import Buffer
from reput_protocol.checksum import crc32
from reput_protocol.message import check_properties_size
from reput_protocol.message_id import IdRun
from reput_protocol.properties import UNIQ_KEY
from reput_protocol.record_layout import HEAD_BYTES, I16, PUT_HEAD, topic_field


class BodyBlock(NamedTuple):
    """The records of a block back to back, and where each of them begins."""

    data: bytes
    positions: Sequence[int]


def encode_body_block(
    bodies: Sequence[Buffer],
    topic: str,
    queue_id: int,
    born_timestamp_ms: int,
    *,
    ids: Sequence[IdRun],
    texts: Sequence[bytes],
    flag: int = 0,
) -> BodyBlock:
    """Return the block that puts `bodies` into one queue, in order.

    Args:
        bodies: at least one; of each, `len` must be its bytes.
        ids: as many unique ids as bodies, in runs; none if no record is to have one.
        texts: the properties of each record but for the unique id, encoded; a single one is that of all.
        flag: of all records.

    Raises:
        InvalidMessage: properties that do not fit, or a topic that fits no record.
    """
    magic, topic_bytes = topic_field(topic.encode())
    count = len(bodies)
    sizes = list(map(len, bodies))
    text_sizes = list(map(len, texts))
    is_table = text_sizes.count(text_sizes[0]) == len(texts)
    tails = (
        _tails(topic_bytes, ids, texts, count)
        if is_table
        else _tails_without_texts(topic_bytes, ids, text_sizes)
    )
    first = HEAD_BYTES + sizes[0] + len(tails[0]) + (0 if is_table else text_sizes[0])
    head = PUT_HEAD.pack(first, magic & 0xFFFF_FFFF, 0, queue_id, flag, 0, born_timestamp_ms, sizes[0])
    heads = bytearray(head * count)
    words = np.ndarray((count, HEAD_BYTES // 4), ">u4", heads)
    words[:, _CRC_WORD] = np.fromiter(map(crc32, bodies), np.uint32, count) & 0x7FFF_FFFF
    positions: Sequence[int] = range(0, count * first, first)
    if not is_table or sizes.count(sizes[0]) < count or len(set(map(len, tails))) > 1:
        body_sizes = np.array(sizes)
        record_sizes = body_sizes + np.fromiter(map(len, tails), np.int64, count) + HEAD_BYTES
        if not is_table:
            record_sizes += np.array(text_sizes)
        words[:, _SIZE_WORD] = record_sizes
        words[:, _BODY_SIZE_WORD] = body_sizes
        positions = [0, *record_sizes[:-1].cumsum().tolist()]
    columns: list[Sequence[Any]] = [_rows(heads, HEAD_BYTES, count), bodies, tails]
    if not is_table:
        columns.append(texts)
    parts: list[Any] = [b""] * (len(columns) * count)
    for number, column in enumerate(columns):
        parts[number :: len(columns)] = column
    return BodyBlock(b"".join(parts), positions)


def _tails(topic_bytes: bytes, ids: Sequence[IdRun], texts: Sequence[bytes], count: int) -> list[bytes]:
    """Return what follows the body of each record, topic and properties, each with its length; texts of one size."""
    if not ids:
        check_properties_size(len(texts[0]))
        before = topic_bytes + I16.pack(len(texts[0]))
        return [before + texts[0]] * count if len(texts) == 1 else [before + text for text in texts]
    tails: list[bytes] = []
    for run in ids:
        start = len(tails)
        tails += _tails_of_run(
            topic_bytes, run, texts if len(texts) == 1 else texts[start : start + run.count]
        )
    return tails


def _tails_without_texts(topic_bytes: bytes, ids: Sequence[IdRun], text_sizes: Sequence[int]) -> list[bytes]:
    """Return what follows the body of each record up to its text, which has so many bytes."""
    if not ids:
        check_properties_size(max(text_sizes))
        return [topic_bytes + I16.pack(size) for size in text_sizes]
    tails: list[bytes] = []
    for run in ids:
        sizes = np.array(text_sizes[len(tails) : len(tails) + run.count])
        tails += _tails_of_run(topic_bytes, run, (b"",), sizes)
    return tails


def _tails_of_run(
    topic_bytes: bytes, run: IdRun, texts: Sequence[bytes], following: NDArray[np.int64] | None = None
) -> list[bytes]:
    """Return the tails of as many records as the run has ids; texts are one, or as many, of one size.

    `following` are the bytes of each record's properties that come behind its tail.
    """
    prefix, count = run.prefix.encode(), run.count
    text = texts[0]
    size = len(_ID_START) + len(prefix) + _NUMBER_BYTES + 1 + len(text)
    check_properties_size(size if following is None else size + int(following.max()))
    start = topic_bytes + I16.pack(size) + _ID_START + prefix
    tail = start + bytes(_NUMBER_BYTES) + _VALUE_END + text
    table = bytearray(tail * count)
    numbers = _hex_numbers()[np.arange(run.first, run.first + count) & 0xFFFF]
    np.ndarray((count,), _NUMBER, table, len(start), (len(tail),))[:] = numbers
    if following is not None:
        np.ndarray((count,), _SHORT, table, len(topic_bytes), (len(tail),))[:] = following + size
    if len(texts) > 1 and text:
        own = np.frombuffer(b"".join(texts), np.uint8).reshape(count, -1)
        np.ndarray((count, len(text)), np.uint8, table, len(tail) - len(text), (len(tail), 1))[:] = own
    return _rows(table, len(tail), count)


def _rows(table: bytearray, size: int, count: int) -> list[bytes]:
    rows: list[bytes] = np.ndarray((count,), np.dtype((np.void, size)), table).tolist()
    return rows


@lru_cache(maxsize=1)
def _hex_numbers() -> NDArray[np.void]:
    """Return the numbers of unique ids, 0 to 65535 in four upper-case hex digits, as an array to index."""
    digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)
    numbers = np.arange(0x1_0000)
    table = np.stack([digits[numbers >> shift & 0xF] for shift in (12, 8, 4, 0)], axis=1)
    return np.ascontiguousarray(table).view(_NUMBER)[:, 0]


_ID_START: Final = f"{UNIQ_KEY}\x01".encode()
_VALUE_END: Final = b"\x02"
_NUMBER_BYTES: Final = 4
_NUMBER: Final = np.dtype((np.void, _NUMBER_BYTES))
_SHORT: Final = np.dtype(">i2")
_SIZE_WORD: Final = 0
_CRC_WORD: Final = 2
_BODY_SIZE_WORD: Final = HEAD_BYTES // 4 - 1
