"""Properties texts of any sizes and shapes, many at once: where their values lie, and the hashes of those.

What `properties_table` is for texts of one shape. Texts whose values are found here are plain (`properties_units`), and
what is hashed of them is ASCII; the others are named, to be read one by one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from reput_protocol.buffers import Buffer
from reput_protocol.properties_units import units_of
from reput_protocol.rows_at import parts_at
from reput_protocol.value_hashes import IntArray, SpanHashes, ValueHashes

_SPACE: Final = 0x20
_ASCII_MAX: Final = 0x7F
_TAGS: Final = b"TAGS"
_UNIQ_KEY: Final = b"UNIQ_KEY"
_KEYS: Final = b"KEYS"


class _Values(NamedTuple):
    """Where the values of one property lie, and in which row."""

    rows: IntArray
    starts: IntArray
    ends: IntArray


class PropertiesSpans:
    """The texts at `starts` of a buffer, one for each row.

    Attributes:
        alone: rows that have to be read one by one, ascending; there are no hashes of theirs.
    """

    __slots__ = ("_count", "_data", "_found", "_hashes", "alone")

    def __init__(self, buffer: Buffer, starts: IntArray, sizes: IntArray) -> None:
        self._data, at, ends = parts_at(buffer, starts, sizes)
        self._hashes = SpanHashes(self._data)
        self._count = len(starts)
        units = units_of(self._data, at, ends)
        self.alone = units.odd
        self._found: dict[bytes, _Values] = {}
        for name in (_TAGS, _UNIQ_KEY, _KEYS):
            numbers = units.numbered(self._data, name)
            rows = units.row[numbers]
            if len(rows):
                self._found[name] = _Values(rows, units.value_start[numbers], units.value_end[numbers])
        if len(self._data) and int(self._data.max()) > _ASCII_MAX:
            self._set_aside_what_is_not_ascii()

    def _set_aside_what_is_not_ascii(self) -> None:
        """Java's characters are not bytes there."""
        others = np.flatnonzero(self._data > _ASCII_MAX)
        bad = np.zeros(self._count, np.bool_)
        for rows, starts, ends in self._found.values():
            bad[rows[np.searchsorted(others, ends) > np.searchsorted(others, starts)]] = True
        if not bad.any():
            return
        self.alone = np.union1d(self.alone, np.flatnonzero(bad))
        for name, values in list(self._found.items()):
            kept = ~bad[values.rows]
            if kept.any():
                self._found[name] = _Values(*(column[kept] for column in values))
            else:
                del self._found[name]

    def tags(self) -> ValueHashes | None:
        """Return the hashes of the tags; None if there are none."""
        return self._hashes_of(_TAGS)

    def keys(self) -> list[ValueHashes]:
        """Return the hashes of what records are indexed under, in the order in which each record's are."""
        hashes = [self._hashes_of(_UNIQ_KEY), self._hashes_of(_KEYS)]
        return [each for each in hashes if each is not None]

    def _hashes_of(self, name: bytes) -> ValueHashes | None:
        found = self._found.get(name)
        if found is None:
            return None
        rows, starts, ends = self._keys_in(found) if name == _KEYS else found
        of_all = rows is found.rows and len(rows) == self._count
        return ValueHashes(slice(0, self._count) if of_all else rows, *self._hashes.of(starts, ends))

    def _keys_in(self, values: _Values) -> _Values:
        """Return the keys that values of KEYS consist of: what lies between spaces."""
        rows, starts, ends = values
        spaces = np.flatnonzero(self._data == _SPACE)
        of = np.searchsorted(starts, spaces, "right") - 1
        inside = (of >= 0) & (spaces < ends[of])
        if not inside.any():
            return values
        spaces, of = spaces[inside], of[inside]
        owners = np.sort(np.concatenate((np.arange(len(rows)), of)))
        starts = np.sort(np.concatenate((starts, spaces + 1)))
        ends = np.sort(np.concatenate((ends, spaces)))
        full = ends > starts
        return _Values(rows[owners[full]], starts[full], ends[full])
