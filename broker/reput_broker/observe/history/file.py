"""The file `consoleHistory`: rows of figures in rings of several steps, names of groups and topics, and events.

Every part has its own checksum, and is written in place with one call. What a kill or a power cut has torn is a missing
value, and no obstacle: no part refers to another one. Nothing is synced. Rows of a longer step are made of those of the
next shorter step when the step is over, from the file, so that a restart in the middle of a step loses nothing of it.

Everything here blocks. One caller at a time.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from reput_broker.observe.counters import REQUEST_SECONDS
from reput_broker.store.base.file_io import allocate

Fold = Callable[[Sequence[float]], float]

NOTHING: Final = math.nan
"""A figure that was not measured."""
NAME: Final = "consoleHistory"


def mean(values: Sequence[float]) -> float:
    """Return the mean of one value or more."""
    return math.fsum(values) / len(values)


class Column(NamedTuple):
    """One figure.

    Attributes:
        in_time: makes one value of those of shorter steps, which follow each other.
        over_brokers: makes one value of those of several brokers at the same time.
    """

    name: str
    in_time: Fold
    over_brokers: Fold


PUT_COUNTS: Final = tuple(f"puts_le_{bound:g}" for bound in (*REQUEST_SECONDS, math.inf))
"""The columns that count puts by how long they took, from which quantiles of any step and any brokers follow."""

COLUMNS: Final = (
    Column("messages_in_per_s", mean, sum),
    Column("messages_out_per_s", mean, sum),
    Column("bytes_in_per_s", mean, sum),
    Column("bytes_out_per_s", mean, sum),
    Column("cpu_ratio", mean, sum),
    Column("loop_delay_s", max, max),
    Column("connections", max, sum),
    Column("flush_behind_bytes", max, sum),
    Column("dispatch_behind_bytes", max, sum),
    Column("memory_bytes", max, sum),
    Column("disk_used_ratio", max, max),
    Column("disk_free_bytes", min, min),
    Column("store_bytes", max, sum),
    Column("delayed", max, sum),
    Column("lag", max, sum),
    Column("lag_age_s", max, max),
    Column("replica_lag_bytes", max, max),
    Column("is_master", max, sum),
    *(Column(name, sum, sum) for name in PUT_COUNTS),
)
"""Figures of the broker. Lag, its age and `delayed` are those of a master."""

LAG_COLUMNS: Final = (Column("lag", max, sum), Column("lag_age_s", max, max))
"""Of a group: messages that are not committed, and the age of the oldest."""
RATE_COLUMNS: Final = (Column("in_per_s", mean, sum), Column("out_per_s", mean, sum))
"""Of a topic: messages per second."""


def folded(columns: Sequence[Fold], rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return one row that stands for several; a value that none of them has is NOTHING."""
    if len(rows) == 1:
        return tuple(rows[0])
    found = []
    for fold, values in zip(columns, zip(*rows, strict=True), strict=True):
        there = [value for value in values if value == value]
        found.append(fold(there) if there else NOTHING)
    return tuple(found)


class Ring(NamedTuple):
    """Rows of one step."""

    step_s: int
    rows: int
    has_names: bool
    """Whether its rows have the figures of groups and topics."""

    @property
    def span_s(self) -> int:
        """How much time it covers."""
        return self.step_s * self.rows


RINGS: Final = (Ring(1, 600, False), Ring(10, 720, True), Ring(60, 1440, True), Ring(600, 2016, True))
"""10 minutes in seconds, 2 hours in steps of 10 s, 24 hours in minutes, 14 days in steps of 10 minutes."""


class Kind(IntEnum):
    """What a name names."""

    GROUP = 0
    TOPIC = 1


NAMES_MAX: Final = 32
"""Groups whose lag is kept, and topics whose rates are."""
NAME_BYTES_MAX: Final = 256
EVENTS_MAX: Final = 512

_MAGIC: Final = b"RPUTHIST"
_VERSION: Final = 1
_HEADER_BYTES: Final = 4096
_HEADER: Final = struct.Struct("<8sII")  # magic, version, bytes of JSON
_CHECKSUM: Final = struct.Struct("<I")
_FIGURES_MAX: Final = 48
"""Figures of the broker for which a row has room, so that a later version may have more."""
_NAME: Final = struct.Struct(f"<qH{NAME_BYTES_MAX}s")  # since (s), bytes, UTF-8
_NAME_BYTES: Final = _CHECKSUM.size + _NAME.size
_EVENT: Final = struct.Struct("<QqqB7x")  # number from 1, time (ms), epoch, what
_EVENT_BYTES: Final = _CHECKSUM.size + _EVENT.size
_NAME_COLUMNS: Final[Mapping[Kind, tuple[Column, ...]]] = {Kind.GROUP: LAG_COLUMNS, Kind.TOPIC: RATE_COLUMNS}
_NAMED: Final = NAMES_MAX * sum(map(len, _NAME_COLUMNS.values()))
_NO_NAMES: Final = (NOTHING,) * _NAMED
_NAMED_FOLDS: Final[tuple[Fold, ...]] = tuple(
    column.in_time for columns in _NAME_COLUMNS.values() for _ in range(NAMES_MAX) for column in columns
)
_ROWS: Final = {
    has_names: struct.Struct(f"<I{_FIGURES_MAX + (_NAMED if has_names else 0)}f") for has_names in (False, True)
}  # where the step begins (s), figures of the broker, then those of each group and each topic


def _row_bytes(ring: Ring) -> int:
    return _CHECKSUM.size + _ROWS[ring.has_names].size


_NAMES_AT: Final = _HEADER_BYTES
_EVENTS_AT: Final = _NAMES_AT + 2 * NAMES_MAX * _NAME_BYTES
_RINGS_AT: Final = tuple(
    _EVENTS_AT + EVENTS_MAX * _EVENT_BYTES + sum(ring.rows * _row_bytes(ring) for ring in RINGS[:level])
    for level in range(len(RINGS))
)
FILE_BYTES: Final = _RINGS_AT[-1] + RINGS[-1].rows * _row_bytes(RINGS[-1])


class NotAHistory(Exception):
    """There is something else at the path, or a file that cannot be continued. The text says why."""


class What(IntEnum):
    """Something that happened to the broker."""

    STARTED = 1
    STOPPED = 2
    BECAME_MASTER = 3
    BECAME_SLAVE = 4


class Event(NamedTuple):
    """What happened, and in which epoch of the log; 0: none is known."""

    at_ms: int
    what: What
    epoch: int


class Row(NamedTuple):
    """The figures of one step: of the broker, in the order of COLUMNS; and of names, by their places."""

    at_s: int
    figures: tuple[float, ...]
    named: tuple[float, ...] = _NO_NAMES


@dataclass(frozen=True, slots=True)
class Stretch:
    """What was read: rows at equal distances, the first of which begins at `begin_s`. None: nothing is known of a step.

    Attributes:
        named: by kind and name, the values of its columns.
    """

    begin_s: int
    step_s: int
    rows: list[tuple[float, ...] | None]
    named: dict[Kind, dict[str, tuple[list[float], ...]]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


class _Header(msgspec.Struct):
    rings: list[Ring]
    names: int
    columns: list[str]
    """Names of the figures of the broker, by their places in a row."""


class HistoryFile:
    """The open file, or the same in memory where there can be none.

    Attributes:
        names: by kind and place, the name and the time in seconds since which it is there.
    """

    def __init__(self, path: Path | None) -> None:
        """Open or create the file. None: in memory.

        Raises:
            NotAHistory: it is something else, and was not changed.
            OSError: it cannot be read or created.
        """
        self._fd = -1
        self._image = bytearray()
        header = _Header([*RINGS], NAMES_MAX, [column.name for column in COLUMNS])
        if path is None:
            self._image = bytearray(FILE_BYTES)
        else:
            self._fd, there = _opened(path, _encoded(header))
            if there is not None:
                header = there
        self._columns = header.columns
        if not {column.name for column in COLUMNS} <= {*self._columns}:
            self._add_columns(header)
        places = {name: place for place, name in enumerate(self._columns)}
        self._places = [places[column.name] for column in COLUMNS]
        by_name = {column.name: column.in_time for column in COLUMNS}
        folds = [by_name.get(name, mean) for name in self._columns]
        self._folds: tuple[Fold, ...] = (*folds, *(mean for _ in range(_FIGURES_MAX - len(folds))))
        self.names: dict[Kind, list[tuple[str, int] | None]] = {kind: self._read_names(kind) for kind in Kind}
        self._events = self._read_events()
        self._last_s: int | None = max((int(row[0]) for row in self._all(0)), default=None)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # Writing

    def append(self, at_s: int, figures: Sequence[float], named: Sequence[float] | None = None) -> None:
        """Write the row of a second, and those of the longer steps that have ended before it.

        Args:
            at_s: the second; usually later than all before.
            figures: of the broker, in the order of COLUMNS.
            named: of groups and topics by their places, in the step of 10 s that has just ended.

        Raises:
            OSError: it could not be written, or not all of it.
        """
        last, self._last_s = self._last_s, at_s
        if last is not None:
            for level, ring in enumerate(RINGS[1:], 1):
                begin = last - last % ring.step_s
                if begin == at_s - at_s % ring.step_s:
                    break  # longer steps have not ended either
                row = self._folded(level, begin)
                if row is not None:
                    if level == 1 and named is not None:
                        row = (*row[:_FIGURES_MAX], *named)
                    self._write(level, begin, row)
        values = [NOTHING] * _FIGURES_MAX
        for place, value in zip(self._places, figures, strict=True):
            values[place] = value
        self._write(0, at_s, values)

    def set_name(self, kind: Kind, place: int, name: str, since_s: int) -> None:
        """Give a place to a name; rows before are not its. Raises OSError."""
        text = name.encode("utf-8", "replace")  # a table may have been written by other programs
        assert len(text) <= NAME_BYTES_MAX, "longer names have no place"
        self.names[kind][place] = (name, since_s)
        self._put(_sealed(_NAME.pack(since_s, len(text), text)), _name_at(kind, place))

    def note(self, event: Event) -> None:
        """Write an event, over the oldest one if there is no room. Raises OSError."""
        number = max((number for number, _ in self._events), default=0) + 1
        self._events = [*self._events[1 - EVENTS_MAX :], (number, event)]
        data = _EVENT.pack(number, event.at_ms, event.epoch, event.what)
        self._put(_sealed(data), _EVENTS_AT + number % EVENTS_MAX * _EVENT_BYTES)

    # Reading

    def read(self, begin_s: int, end_s: int, rows_max: int, now_s: int, *, has_names: bool = False) -> Stretch:
        """Return the rows from `begin_s` until before `end_s`, of the shortest step that is kept for so long.

        With names, it is at least that of the first ring that has them.

        Several are made one if there are more than `rows_max`, and then the range is wider, to whole steps.
        """
        level = next(
            (
                level
                for level, ring in enumerate(RINGS)
                if now_s - begin_s <= ring.span_s and ring.has_names >= has_names
            ),
            len(RINGS) - 1,
        )
        ring = RINGS[level]
        begin_s = max(begin_s, now_s - ring.span_s)
        step_s = ring.step_s * max(1, -(-(end_s - begin_s) // (ring.step_s * rows_max)))
        begin_s -= begin_s % step_s
        end_s = max(end_s, begin_s + 1)
        count = -(-(end_s - begin_s) // step_s)
        found: list[list[tuple[float, ...]]] = [[] for _ in range(count)]
        for at_s, values in self._rows(level, begin_s, begin_s + count * step_s, now_s):
            found[(at_s - begin_s) // step_s].append(values)
        if not has_names:
            found = [[values[:_FIGURES_MAX] for values in rows] for rows in found]
        folds = (*self._folds, *_NAMED_FOLDS) if has_names else self._folds
        rows = [folded(folds, rows) if rows else None for rows in found]
        return Stretch(
            begin_s,
            step_s,
            [None if row is None else tuple(row[place] for place in self._places) for row in rows],
            self._named(rows, begin_s, step_s) if has_names else {},
            [event for _, event in self._events if begin_s <= event.at_ms / 1000 < begin_s + count * step_s],
        )

    def _named(
        self, rows: Sequence[tuple[float, ...] | None], begin_s: int, step_s: int
    ) -> dict[Kind, dict[str, tuple[list[float], ...]]]:
        found: dict[Kind, dict[str, tuple[list[float], ...]]] = {}
        for kind, columns in _NAME_COLUMNS.items():
            of_kind = found[kind] = {}
            for place, held in enumerate(self.names[kind]):
                if held is None:
                    continue
                name, since_s = held
                first = _FIGURES_MAX + place_of(kind, place)
                values: tuple[list[float], ...] = tuple(
                    [
                        NOTHING if row is None or begin_s + (number + 1) * step_s <= since_s else row[at]
                        for number, row in enumerate(rows)
                    ]
                    for at in range(first, first + len(columns))
                )
                if any(value == value for value in values[0]):
                    of_kind[name] = values
        return found

    def _rows(self, level: int, begin_s: int, end_s: int, now_s: int) -> Iterator[tuple[int, tuple[float, ...]]]:
        """Yield the rows of a range, the one of the step that has not ended too."""
        ring, open_s = RINGS[level], None
        if level and self._last_s is not None:
            open_s = self._last_s - self._last_s % ring.step_s
        size = _row_bytes(ring)
        data = memoryview(self._get(ring.rows * size, _RINGS_AT[level]))
        first_s = max(begin_s, now_s - ring.span_s + 1)
        first_s += -first_s % ring.step_s
        for at_s in range(first_s, min(end_s, now_s + 1), ring.step_s):
            if at_s == open_s:
                open_row = self._folded(level, at_s)
                if open_row is not None:
                    yield at_s, open_row
                continue
            at = _row_at(level, at_s) - _RINGS_AT[level]
            row = self._unsealed_row(level, data[at : at + size])
            if row is not None and row[0] == at_s:
                yield at_s, row[1:]

    def _folded(self, level: int, begin_s: int) -> tuple[float, ...] | None:
        """Return the row of a step, made of those of the next shorter one; None if there is none of them."""
        shorter = RINGS[level - 1]
        end_s = begin_s + RINGS[level].step_s
        is_open = self._last_s is not None and begin_s <= self._last_s < end_s
        rows = []
        for at_s in range(begin_s, end_s, shorter.step_s):
            row = self._row(level - 1, at_s)
            is_last = is_open and self._last_s is not None and at_s <= self._last_s < at_s + shorter.step_s
            if level > 1 and is_last:
                row = self._folded(level - 1, at_s)
            if row is not None:
                rows.append(row)
        if not rows:
            return None
        if not shorter.has_names:
            return (*folded(self._folds, rows), *_NO_NAMES)
        return folded((*self._folds, *_NAMED_FOLDS), rows)

    def _row(self, level: int, at_s: int) -> tuple[float, ...] | None:
        data = self._get(_row_bytes(RINGS[level]), _row_at(level, at_s))
        row = self._unsealed_row(level, memoryview(data))
        return row[1:] if row is not None and row[0] == at_s else None

    def _all(self, level: int) -> Iterator[tuple[float, ...]]:
        """Yield every row of a ring, its time before its values."""
        size = _row_bytes(RINGS[level])
        data = memoryview(self._get(RINGS[level].rows * size, _RINGS_AT[level]))
        for at in range(0, len(data), size):
            row = self._unsealed_row(level, data[at : at + size])
            if row is not None and _row_at(level, int(row[0])) == _RINGS_AT[level] + at:
                yield row

    def _unsealed_row(self, level: int, data: memoryview) -> tuple[float, ...] | None:
        if not _is_sealed(data):
            return None
        ring = RINGS[level]
        row: tuple[float, ...] = _ROWS[ring.has_names].unpack_from(data, _CHECKSUM.size)
        return None if row[0] % ring.step_s else row

    def _read_names(self, kind: Kind) -> list[tuple[str, int] | None]:
        found: list[tuple[str, int] | None] = []
        for place in range(NAMES_MAX):
            data = memoryview(self._get(_NAME_BYTES, _name_at(kind, place)))
            found.append(None)
            if _is_sealed(data):
                since_s, size, text = _NAME.unpack_from(data, _CHECKSUM.size)
                with suppress(UnicodeDecodeError):
                    found[-1] = (text[:size].decode(), since_s)
        return found

    def _read_events(self) -> list[tuple[int, Event]]:
        found = []
        for place in range(EVENTS_MAX):
            data = memoryview(self._get(_EVENT_BYTES, _EVENTS_AT + place * _EVENT_BYTES))
            if _is_sealed(data):
                number, at_ms, epoch, what = _EVENT.unpack_from(data, _CHECKSUM.size)
                with suppress(ValueError):
                    found.append((number, Event(at_ms, What(what), epoch)))
        return sorted(found)

    # Bytes

    def _add_columns(self, header: _Header) -> None:
        known = {*header.columns}
        header.columns += [column.name for column in COLUMNS if column.name not in known]
        if len(header.columns) > _FIGURES_MAX:
            self.close()
            raise NotAHistory(f"its rows have no room for {len(header.columns)} figures")
        self._put(_encoded(header), 0)

    def _write(self, level: int, at_s: int, values: Sequence[float]) -> None:
        form = _ROWS[RINGS[level].has_names]
        self._put(_sealed(form.pack(at_s, *map(_fitting, values))), _row_at(level, at_s))

    def _get(self, size: int, at: int) -> bytes:
        if self._fd < 0:
            return bytes(memoryview(self._image)[at : at + size]).ljust(size, b"\0")
        parts = []
        while size:
            part = os.pread(self._fd, size, at)
            if not part:
                parts.append(bytes(size))
                break
            parts.append(part)
            size -= len(part)
            at += len(part)
        return b"".join(parts)

    def _put(self, data: bytes, at: int) -> None:
        if self._fd < 0:
            self._image[at : at + len(data)] = data
            return
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written


def place_of(kind: Kind, place: int) -> int:
    """Return where the first figure of a name is among those of all names."""
    return (0 if kind is Kind.GROUP else NAMES_MAX * len(LAG_COLUMNS)) + place * len(_NAME_COLUMNS[kind])


def no_named() -> list[float]:
    """Return the figures of names, none of which is known."""
    return [*_NO_NAMES]


def _opened(path: Path, header: bytes) -> tuple[int, _Header | None]:
    """Return the descriptor of the file, and its header; None if it is new."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        _create(path, header)
        found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise NotAHistory("it is not a file")
    if found.st_size != FILE_BYTES:
        raise NotAHistory(f"it has {found.st_size} bytes and not {FILE_BYTES}")
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
    try:
        return fd, _decoded(os.pread(fd, _HEADER_BYTES, 0))
    except BaseException:
        os.close(fd)
        raise


def _create(path: Path, header: bytes) -> None:
    """Create the file whole, so that a kill leaves none or all of it."""
    new = path.with_name(f"{path.name}.new")
    with suppress(FileNotFoundError):
        new.unlink()
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        allocate(fd, FILE_BYTES)
        os.pwrite(fd, header, 0)
        os.rename(new, path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    finally:
        os.close(fd)


def _encoded(header: _Header) -> bytes:
    text = msgspec.json.encode(header)
    data = (_HEADER.pack(_MAGIC, _VERSION, len(text)) + text).ljust(_HEADER_BYTES - _CHECKSUM.size, b"\0")
    return data + _CHECKSUM.pack(crc32(data))


def _decoded(data: bytes) -> _Header:
    magic, version, size = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise NotAHistory("it does not begin like a history")
    if version != _VERSION:
        raise NotAHistory(f"it is of version {version}, and this broker writes version {_VERSION}")
    if _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0] != crc32(data[: -_CHECKSUM.size]):
        raise NotAHistory("the checksum of its header is wrong")
    try:
        header = msgspec.json.decode(data[_HEADER.size : _HEADER.size + size], type=_Header)
    except msgspec.DecodeError as error:
        raise NotAHistory(f"its header cannot be read: {error}") from None
    if header.rings != [*RINGS] or header.names != NAMES_MAX:
        raise NotAHistory("its rings are others")
    if len(header.columns) > _FIGURES_MAX or len({*header.columns}) != len(header.columns):
        raise NotAHistory("its columns are not valid")
    return header


def _sealed(data: bytes) -> bytes:
    return _CHECKSUM.pack(crc32(data)) + data


def _is_sealed(data: memoryview) -> bool:
    return int(_CHECKSUM.unpack_from(data)[0]) == crc32(data[_CHECKSUM.size :])


def _name_at(kind: Kind, place: int) -> int:
    return _NAMES_AT + (kind * NAMES_MAX + place) * _NAME_BYTES


def _row_at(level: int, at_s: int) -> int:
    ring = RINGS[level]
    return _RINGS_AT[level] + at_s // ring.step_s % ring.rows * _row_bytes(ring)


_FLOAT_MAX: Final = 3.4e38


def _fitting(value: float) -> float:
    """Return a value that four bytes can hold."""
    return max(-_FLOAT_MAX, min(_FLOAT_MAX, value)) if value == value else NOTHING
