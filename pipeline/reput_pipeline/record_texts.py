"""The properties text of each message, as parts that are joined: unique id, tag, keys, and what a map holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reput_pipeline.binary_columns import ByteArray, IntArray, fixed_binary, parts_of, sizes_of
from reput_pipeline.errors import SinkError
from reput_pipeline.unique_id_rows import ID_BYTES, UniqueIds
from reput_protocol.properties import CRC32, KEYS, TAGS, UNIQ_KEY, reserved_property

_NAME_END: Final = 1
_VALUE_END: Final = 2
_ID_START: Final = f"{UNIQ_KEY}\x01".encode()
_END: Final = b"\x02"
_ID_UNIT_BYTES: Final = len(_ID_START) + ID_BYTES + len(_END)


class Texts(NamedTuple):
    """The properties texts of messages, in parts."""

    heads: ByteArray
    """What each begins with, of one size: a row for each, perhaps of no bytes."""
    parts: Sequence[pa.Array | bytes]
    """What follows, to be joined: binary columns without nulls, and bytes that are in each."""
    sizes: IntArray
    """How long each text is."""


def encode_texts(
    rows: int,
    tags: pa.Array | None,
    keys: pa.Array | None,
    properties: pa.MapArray | None,
    topic: str,
    ids: UniqueIds,
) -> Texts:
    """Return the properties texts of `rows` messages of a topic.

    Args:
        tags, keys: string; null and empty are none. None if nobody gives any.
        properties: map of string to string; what stands there of tag and keys is left out where those are given.
        topic: for errors.
        ids: gives unique ids to those that bring none.

    Raises:
        SinkError: a property cannot be one.
    """
    parts: list[pa.Array | bytes] = []
    sizes: IntArray = np.zeros(rows, np.int64)
    rest: pa.Array | None = None
    own_ids: npt.NDArray[np.bool_] | None = None
    if properties is not None:
        dropped = [CRC32, *(name for name, column in ((TAGS, tags), (KEYS, keys)) if column is not None)]
        rest, own_ids = _map_texts(properties, dropped, topic)
    if own_ids is None or not own_ids.any():
        heads = _id_units(rows, ids)
    else:
        heads = np.empty((rows, 0), np.uint8)
        units = pc.if_else(pa.array(own_ids), pa.scalar(b"", pa.binary()), fixed_binary(_id_units(rows, ids)))
        parts.append(units)
        sizes += sizes_of(units)
    sizes += heads.shape[1]
    for name, column in ((TAGS, tags), (KEYS, keys)):
        if column is not None:
            added, its_sizes = _column_texts(name, column, topic)
            parts += added
            sizes += its_sizes
    if rest is not None:
        parts.append(rest)
        sizes += sizes_of(rest)
    return Texts(heads, parts, sizes)


def _id_units(rows: int, ids: UniqueIds) -> ByteArray:
    units: ByteArray = np.empty((rows, _ID_UNIT_BYTES), np.uint8)
    units[:, : len(_ID_START)] = np.frombuffer(_ID_START, np.uint8)
    ids.write(units[:, len(_ID_START) : -len(_END)])
    units[:, -len(_END) :] = np.frombuffer(_END, np.uint8)
    return units


def _column_texts(name: str, column: pa.Array, topic: str) -> tuple[list[pa.Array | bytes], IntArray]:
    """Return `name 0x01 value 0x02` for each value, nothing for a null or an empty one; and how long each is."""
    start = name.encode() + b"\x01"
    values = column.cast(pa.binary())
    if values.null_count:
        values = values.fill_null(b"")
    data, edges = parts_of(values)
    raw: ByteArray = np.frombuffer(data, np.uint8)
    if ((raw == _NAME_END) | (raw == _VALUE_END)).any():
        raise _separator_within(topic)
    sizes = np.diff(edges)
    if sizes.all():
        return [start, values, _END], sizes + len(start) + len(_END)
    units = pc.if_else(
        pa.array(sizes > 0),
        pc.binary_join_element_wise(pa.scalar(start, pa.binary()), values, pa.scalar(_END, pa.binary()), b""),
        pa.scalar(b"", pa.binary()),
    )
    return [units], sizes_of(units)


def _map_texts(
    properties: pa.MapArray, dropped: list[str], topic: str
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return the texts of the map column, and which rows have a unique id in it."""
    rows = len(properties)
    offsets: IntArray = np.asarray(properties.offsets.to_numpy(), np.int64)
    offsets = offsets[: rows + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    names = properties.keys.slice(first, last - first)
    values = properties.items.slice(first, last - first)
    row: IntArray = np.repeat(np.arange(rows), np.diff(offsets))
    if properties.null_count:  # a null map may have entries beneath it
        beneath = pa.array(np.asarray(properties.is_null())[row])
        values = pc.if_else(beneath, pa.scalar(None, values.type), values)
    _check_names(names, topic)
    kept = pc.and_(pc.is_valid(values), pc.invert(pc.is_in(names, value_set=pa.array(dropped, names.type))))
    if pc.any(pc.and_(kept, pc.equal(pc.binary_length(values), 0))).as_py():
        raise SinkError(
            f"a message of topic {topic!r} has a property without a value; leave it out, or make it null"
        )
    ids = pc.and_(kept, pc.equal(names, UNIQ_KEY))
    own: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
    own[row[np.asarray(ids)]] = True
    name_end, value_end = pa.scalar(b"\x01", pa.binary()), pa.scalar(b"\x02", pa.binary())
    texts = pc.binary_join_element_wise(
        names.cast(pa.binary()), name_end, values.cast(pa.binary()), value_end, b""
    )
    texts = pc.if_else(kept, texts, pa.scalar(b"", pa.binary()))
    lists = pa.ListArray.from_arrays(pa.array(offsets - first, pa.int32()), texts)
    joined = pc.binary_join(lists, b"")
    _check_separators(joined, int(pc.sum(kept).as_py() or 0), topic)
    return joined, own


def _check_names(names: pa.Array, topic: str) -> None:
    for name in pc.unique(names).to_pylist():
        if not name:
            raise SinkError(f"a message of topic {topic!r} has a property with an empty name; give it one")
        if name != CRC32 and reserved_property(f"{name}\x01x\x02".encode()) is not None:
            raise SinkError(
                f"a message of topic {topic!r} has the property {name!r}, which only the broker may set; leave it out"
            )


def _check_separators(texts: pa.Array, units: int, topic: str) -> None:
    """Refuse texts in which a property holds one of the separators, 0x01 and 0x02."""
    raw: ByteArray = np.frombuffer(parts_of(texts)[0], np.uint8)
    if int((raw == _NAME_END).sum()) != units or int((raw == _VALUE_END).sum()) != units:
        raise _separator_within(topic)


def _separator_within(topic: str) -> SinkError:
    return SinkError(
        f"a message of topic {topic!r} has a tag, key or property with one of the characters U+0001 and U+0002, "
        "which separate properties; leave them out"
    )
