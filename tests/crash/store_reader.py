"""Read a store directory as it is on disk, with the record codec alone.

Nothing here shares code with the store under test: the commit log is walked record by record from its first file, and
ConsumeQueue files are read unit by unit. A torn tail ends the walk.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from crash.ledger import QueueKey
from reput_protocol.record.record import decode_record

_BLANK = 0xCBD43194
_HEAD = struct.Struct(">iI")
_UNIT = struct.Struct(">qiq")
_PRE_BLANK_SIZE = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of the commit log, without its body."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """One unit of a ConsumeQueue."""

    physical_offset: int
    size: int


@dataclass(slots=True)
class StoreReading:
    """What a directory holds: the log's valid records in order, and every queue's written units."""

    records: list[LogRecord] = field(default_factory=list)
    units: dict[QueueKey, list[tuple[int, QueueUnit]]] = field(default_factory=dict)
    end_offset: int = 0


def read_store(data_dir: Path) -> StoreReading:
    """Read `commitlog/` up to the first thing that is no record, and all of `consumequeue/`."""
    reading = StoreReading()
    _read_log(data_dir / "commitlog", reading)
    _read_queues(data_dir / "consumequeue", reading)
    return reading


def _read_log(directory: Path, reading: StoreReading) -> None:
    for path in sorted(directory.iterdir()) if directory.exists() else []:
        data = path.read_bytes()
        base = int(path.name)
        position = 0
        while position + _HEAD.size <= len(data):
            size, magic = _HEAD.unpack_from(data, position)
            if magic == _BLANK:
                position = len(data)
                break
            if size <= 0:
                return
            try:
                record = decode_record(data, position)
            except Exception:
                return
            if record.physical_offset != base + position:
                return
            reading.records.append(
                LogRecord(record.topic, record.queue_id, record.queue_offset, record.physical_offset, size)
            )
            position += size
            reading.end_offset = base + position
        if position < len(data):
            return


def _read_queues(directory: Path, reading: StoreReading) -> None:
    # One whose name begins with a dot has the files of deleted topics.
    for topic_dir in sorted(directory.glob("[!.]*")):
        for queue_dir in sorted(topic_dir.iterdir()):
            units: list[tuple[int, QueueUnit]] = []
            for path in sorted(queue_dir.iterdir()):
                first = int(path.name) // _UNIT.size
                data = path.read_bytes()
                for index in range(len(data) // _UNIT.size):
                    physical_offset, size, _ = _UNIT.unpack_from(data, index * _UNIT.size)
                    if size not in (0, _PRE_BLANK_SIZE):
                        units.append((first + index, QueueUnit(physical_offset, size)))
            reading.units[topic_dir.name, int(queue_dir.name)] = units
