"""Properties texts of one shape laid beneath each other: whole columns are then read and hashed at once.

Messages of one producer have the same properties in the same order, often with values of the same lengths. Their texts
form a table in which every name and separator stands in a column of its own. Texts fit into one table if that is so, if
their values hold no separators and no name comes twice, if tags and keys are ASCII, and if the spaces between several
keys stand in the same columns; only then does a column hold what a reader of the single text would find (RocketMQ:
MessageDecoder.string2messageProperties). Texts that do not fit into one are read by `properties_spans`.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reput_protocol.buffers import Buffer
from reput_protocol.properties_spans import PropertiesSpans
from reput_protocol.rows_at import rows_at
from reput_protocol.value_hashes import IntArray, ValueHashes, falling_powers, power_of_31

ByteTable: TypeAlias = NDArray[np.uint8]
Span: TypeAlias = tuple[int, int]

_NAME_END: Final = 1
_VALUE_END: Final = 2
_SPACE: Final = 0x20
_ASCII_MAX: Final = 0x7F
_HASHED: Final = (b"TAGS", b"UNIQ_KEY")
_NONE: Final = np.empty(0, dtype=np.int64)


class PropertiesTable(NamedTuple):
    """The texts of all rows, of one size and shape."""

    texts: ByteTable
    """One text a row, one byte a column."""
    spans: dict[bytes, Span]
    """Where each property's value lies in every text, by name."""
    key_spans: list[Span]
    """Where the keys lie that the value of KEYS consists of."""

    @property
    def alone(self) -> IntArray:
        """Rows that have to be read one by one: none."""
        return _NONE

    def tags(self) -> ValueHashes | None:
        """Return the hashes of the tags; None if there are none."""
        span = self.spans.get(b"TAGS")
        return None if span is None else self._hashes_of(span)

    def keys(self) -> list[ValueHashes]:
        """Return the hashes of what records are indexed under, in the order in which each record's are."""
        unique_key = self.spans.get(b"UNIQ_KEY")
        spans = self.key_spans if unique_key is None else [unique_key, *self.key_spans]
        return [self._hashes_of(span) for span in spans]

    def _hashes_of(self, span: Span) -> ValueHashes:
        texts = self.texts[:, span[0] : span[1]]
        count, size = texts.shape
        hashes = (texts * falling_powers(size)).sum(axis=1, dtype=np.uint32)
        return ValueHashes(slice(0, count), hashes, power_of_31(size))


PropertiesTexts: TypeAlias = PropertiesTable | PropertiesSpans


def read_texts(buffer: Buffer, starts: IntArray, sizes: IntArray) -> PropertiesTexts:
    """Return the properties texts at `starts` of `buffer` as one table if they are one, else by their places."""
    if len(sizes) and (sizes == sizes[0]).all():
        table = table_of(rows_at(buffer, starts, int(sizes[0])))
        if table is not None:
            return table
    return PropertiesSpans(buffer, starts, sizes)


def table_of(texts: ByteTable) -> PropertiesTable | None:
    """Return texts that lie beneath each other as one table; None if they are not all of one shape, or empty."""
    shape = _shape_of(texts[0].tobytes())
    if shape is None or not shape.is_that_of(texts):
        return None
    return PropertiesTable(texts, shape.spans, shape.keys)


class _Shape(NamedTuple):
    """Where things lie in a text, and between which bytes every other text of this shape is in each column."""

    spans: dict[bytes, Span]
    keys: list[Span]
    lowest: ByteTable
    spread: ByteTable
    """How much higher than the lowest a byte may be: not at all in names and separators."""

    def is_that_of(self, texts: ByteTable) -> bool:
        """Tell whether all texts have this shape."""
        # One comparison for both bounds: what lies below wraps around to the far end.
        return bool((texts - self.lowest <= self.spread).all())


def _shape_of(text: bytes) -> _Shape | None:
    """Return where the values lie in a text; None if it is not plain enough to tell."""
    spans: dict[bytes, Span] = {}
    keys: list[Span] = []
    lowest = np.frombuffer(text, np.uint8).copy()
    spread = np.zeros(len(text), np.uint8)
    start = 0
    while start < len(text):
        name_end = text.find(_NAME_END, start)
        end = text.find(_VALUE_END, start)
        if end < 0 or not start < name_end < end - 1:
            return None
        name = text[start:name_end]
        if name in spans:
            return None
        span = spans[name] = (name_end + 1, end)
        if name == b"KEYS":
            keys = _keys_in(text, *span)
            for first, stop in keys:
                lowest[first:stop] = _SPACE + 1
                spread[first:stop] = _ASCII_MAX - _SPACE - 1
        else:
            lowest[slice(*span)] = _VALUE_END + 1
            spread[slice(*span)] = (_ASCII_MAX if name in _HASHED else 0xFF) - _VALUE_END - 1
        start = end + 1
    return _Shape(spans, keys, lowest, spread)


def _keys_in(text: bytes, start: int, end: int) -> list[Span]:
    keys: list[Span] = []
    while start < end:
        stop = text.find(_SPACE, start, end)
        stop = end if stop < 0 else stop
        if start < stop:
            keys.append((start, stop))
        start = stop + 1
    return keys
