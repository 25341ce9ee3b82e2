"""Show the contents of a store directory, file by file, including damage; export the messages of a topic, each
verified."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from reput_broker.store.base.checkpoint import CHECKPOINT_BYTES
from reput_broker.tools.index_raw import INDEX_BYTES_MIN, RawIndex
from reput_broker.tools.tables import (
    OffsetKey,
    apply_journal,
    find_journal,
    offsets_in,
    table_in_force,
    topics_in_force,
)
from reput_broker.tools.verify_checkpoint import checkpoint_fields, valid_mark
from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel.records import checksum_faults
from reput_protocol.record.message_fields import body_field, message_fields
from reput_protocol.record.record import Record, decode_record
from reput_protocol.record.scan import POSITION, SIZE
from reput_protocol.store.layout import QueueDirectory, StoreLayout
from reput_protocol.store.log_reader import BlankEnd, Damage, LogBatch, LogEnd, read_log
from reput_protocol.store.unit import PRE_BLANK_SIZE, UNIT_BYTES
from reput_protocol.store.unit_files import OpenFiles, UnitFiles

_CHUNK_UNITS = 4096
_READ_BYTES_MAX = 4 << 20
_GAP_BYTES_MAX = 64 << 10


def record_fields(record: Record) -> dict[str, Any]:
    """Return every field of a record."""
    return {
        **common_fields(record),
        "physical_offset": record.physical_offset,
        "store_host": str(record.store_host),
        "born_host": str(record.born_host),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_bytes": len(record.body),
        **body_field(record.body),
    }


def common_fields(record: Record) -> dict[str, Any]:
    """Return the fields of a record that a consumer prints too, without its body."""
    return message_fields(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        offset_message_id=record.offset_message_id,
        store_timestamp_ms=record.store_timestamp_ms,
        born_timestamp_ms=record.born_timestamp_ms,
        properties=record.property_map(),
    )


Row = dict[str, Any]
_CHUNK = 4096
_INDEX_HEADER = (
    "begin_timestamp",
    "end_timestamp",
    "begin_phy_offset",
    "end_phy_offset",
    "hash_slot_count",
    "index_count",
)
"""RocketMQ's names for the fields of an index file's header."""


class DumpRange(NamedTuple):
    """Positions `[start, stop)`, and the maximum number of rows."""

    start: int | None = None
    stop: int | None = None
    count_max: int | None = None


class NotThere(LookupError):
    """The requested object is not in the directory."""


def dump_log(layout: StoreLayout, part: DumpRange) -> Iterator[Row]:
    """Yield every record, blank, damage and the end of the log; positions are log offsets.

    A record that fails a check has a `fault` with the reason.
    """
    start = part.start or 0
    first = next((n for n, file in enumerate(layout.log.files) if start < file.start + layout.log.file_size), None)
    if first is None:
        return
    left = part.count_max
    for piece in read_log(layout.log, first):
        for row in _rows_of(piece):
            if row["offset"] < start and row["kind"] != "end":
                continue
            if (part.stop is not None and row["offset"] >= part.stop) or left == 0:
                return
            left = None if left is None else left - 1
            yield row


def _rows_of(piece: LogBatch | Damage | BlankEnd | LogEnd) -> Iterator[Row]:
    if isinstance(piece, LogBatch):
        bad = dict(checksum_faults(piece.data, piece.table))
        rows = zip(piece.column(POSITION), piece.column(SIZE), strict=True)
        for row, (position, size) in enumerate(rows):
            fields = record_fields(decode_record(piece.data, position, check_crc=False))
            found: Row = {"kind": "record", "offset": piece.offset + position, "size": size, **fields}
            if row in bad:
                found["fault"] = bad[row]
            yield found
    elif isinstance(piece, Damage):
        yield {
            "kind": "damage",
            "offset": piece.offset,
            "size": piece.end_position - piece.position,
            "file": str(piece.file.path),
            "position": piece.position,
            "fault": piece.reason,
        }
    elif isinstance(piece, BlankEnd):
        offset = piece.file.start + piece.position
        yield {"kind": "blank", "offset": offset, "size": piece.file.size - piece.position}
    else:
        yield {"kind": "end", "offset": piece.offset}


def dump_queue(layout: StoreLayout, topic: str, queue_id: int, part: DumpRange) -> Iterator[Row]:
    """Yield every unit of a queue; positions are queue offsets.

    Raises:
        NotThere: the queue does not exist.
    """
    queue = find_queue(layout, topic, queue_id)
    files = OpenFiles()
    try:
        units = UnitFiles(queue.stream, files)
        start = max(units.first, part.start or 0)
        stop = units.end if part.stop is None else min(part.stop, units.end)
        if part.count_max is not None:
            stop = min(stop, start + part.count_max)
        for at in range(start, stop, _CHUNK):
            for index, unit in enumerate(units.read(at, min(_CHUNK, stop - at))):
                physical_offset, size, code = unit
                path, position = units.place(at + index)
                yield {
                    "kind": "pre_blank" if size == PRE_BLANK_SIZE and not physical_offset else "unit",
                    "queue_offset": at + index,
                    "physical_offset": physical_offset,
                    "size": size,
                    "tags_code": code,
                    "file": path.name,
                    "position": position,
                }
    finally:
        files.close()


def find_queue(layout: StoreLayout, topic: str, queue_id: int) -> QueueDirectory:
    """Return a queue's directory.

    Raises:
        NotThere: the queue does not exist.
    """
    for queue in layout.queues:
        if (queue.topic, queue.queue_id) == (topic, queue_id):
            return queue
    raise NotThere(f"there is no queue {topic}/{queue_id} in {layout.consume_queue_dir}")


def dump_index(layout: StoreLayout, part: DumpRange) -> Iterator[Row]:
    """Yield the header and the entries of every index file; positions are log offsets."""
    left = part.count_max
    for path in layout.index_files():
        if path.stat().st_size < INDEX_BYTES_MIN:
            yield {"kind": "damage", "file": path.name, "fault": "the file is too short for an index"}
            continue
        raw = RawIndex(path)
        try:
            raw.set_slots(layout.geometry.index_slots or raw.guess_slots())
            slots = raw.slot_count or None
            yield {
                "kind": "header",
                "file": path.name,
                **dict(zip(_INDEX_HEADER, raw.header, strict=True)),
                "slots": slots,
                "entries": slots and raw.entry_max,
            }
            if not raw.slot_count:
                continue
            for first in range(1, raw.used, _CHUNK):
                entries = raw.entries(first, min(first + _CHUNK, raw.used))
                for index, (key_hash, offset, seconds, previous) in enumerate(entries):
                    if offset < (part.start or 0) or (part.stop is not None and offset >= part.stop):
                        continue
                    if left == 0:
                        return
                    left = None if left is None else left - 1
                    yield {
                        "kind": "entry",
                        "file": path.name,
                        "number": first + index,
                        "hash": key_hash,
                        "slot": key_hash % raw.slot_count,
                        "physical_offset": offset,
                        "seconds": seconds,
                        "previous": previous,
                    }
        finally:
            raw.close()


def dump_checkpoint(root: Path) -> Row:
    """Return the fields of the checkpoint, and the mark if it is valid.

    Raises:
        NotThere: there is no checkpoint.
    """
    path = root / "checkpoint"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NotThere(f"there is no {path}") from None
    mark = valid_mark(root)
    row: Row = {"kind": "checkpoint", **checkpoint_fields(data.ljust(CHECKPOINT_BYTES, b"\0"))}
    row["mark"] = None if mark is None else mark._asdict()
    return row


def dump_topics(layout: StoreLayout) -> Iterator[Row]:
    """Yield every topic of `topics.json`, then every queue with its bounds."""
    table = topics_in_force(layout.config_dir).members.get("topicConfigTable")
    for name, entry in sorted(table.items()) if isinstance(table, dict) else ():
        members = entry if isinstance(entry, dict) else {"entry": entry}
        yield {"kind": "topic", "topic": name, **{key: value for key, value in members.items() if key != "topicName"}}
    files = OpenFiles()
    try:
        for queue in layout.queues:
            units = UnitFiles(queue.stream, files)
            yield {
                "kind": "queue",
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "files": len(queue.stream.files),
                "first_unit": units.first,
                "end": units.end,
                "bytes": units.end * UNIT_BYTES - queue.stream.min_offset,
            }
    finally:
        files.close()


def dump_offsets(layout: StoreLayout) -> Iterator[Row]:
    """Yield every committed offset, including the journal's commits."""
    table = table_in_force(layout.config_dir / "consumerOffset.json")
    offsets = offsets_in(table.members)
    in_json: dict[OffsetKey, Any] = dict(offsets)
    found = find_journal(layout.config_dir, table)
    if found is not None:
        apply_journal(offsets, found[1])
    for key, offset in sorted(offsets.items()):
        group, topic, queue_id = key
        source = "consumerOffset.json" if in_json.get(key) == offset or found is None else found[0].name
        yield {
            "kind": "offset",
            "group": group,
            "topic": topic,
            "queue_id": queue_id,
            "offset": offset,
            "source": source,
        }


class ExportRange(NamedTuple):
    """A range of queue offsets or of store times in milliseconds; the end is excluded."""

    start: int | None = None
    stop: int | None = None
    start_ms: int | None = None
    stop_ms: int | None = None


class BadMessage(NamedTuple):
    """A message that cannot be exported."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    reason: str

    def __str__(self) -> str:
        message = f"message {self.queue_offset} of {self.topic}/{self.queue_id}"
        return f"{message} at log offset {self.physical_offset}: {self.reason}"


class TopicExport:
    """The messages of one topic, queue after queue, in the order of their queue offsets.

    A message is exported only if its record is valid, checksums included, and is the one that its
    queue entry means.

    Raises (on construction):
        NotThere: the topic has no queues.
    """

    def __init__(self, layout: StoreLayout, topic: str, part: ExportRange) -> None:
        self._layout = layout
        self._part = part
        self._files = OpenFiles()
        self._queues = [queue for queue in layout.queues if queue.topic == topic]
        if not self._queues:
            raise NotThere(f"topic {topic} has no queue in {layout.consume_queue_dir}")
        self.bad_count = 0
        """Messages that were omitted because they are damaged."""
        self.total_units = sum(self._bounds(queue)[2] for queue in self._queues)
        """Units to examine."""
        self.units_done = 0

    def _bounds(self, queue: QueueDirectory) -> tuple[UnitFiles, int, int]:
        units = UnitFiles(queue.stream, self._files)
        start = max(units.first, self._part.start or 0)
        stop = units.end if self._part.stop is None else min(self._part.stop, units.end)
        return units, start, max(0, stop - start)

    def messages(self) -> Iterator[Record | BadMessage]:
        """Yield the messages, with a `BadMessage` in place of each damaged one."""
        try:
            for queue in self._queues:
                units, start, count = self._bounds(queue)
                for at in range(start, start + count, _CHUNK_UNITS):
                    rows = units.read(at, min(_CHUNK_UNITS, start + count - at))
                    self.units_done += len(rows)
                    yield from self._chunk(queue, at, rows)
        finally:
            self._files.close()

    def _chunk(self, queue: QueueDirectory, first: int, rows: list[Any]) -> Iterator[Record | BadMessage]:
        window = b""
        window_at = 0
        log_min = self._layout.log.min_offset
        for index, (offset, size, _) in enumerate(rows):
            if (size == PRE_BLANK_SIZE and not offset) or (size > 0 and 0 <= offset < log_min):
                continue  # pre-blank, or its record has expired
            if not window_at <= offset <= offset + size <= window_at + len(window):
                window_at = offset
                window = self._read(offset, self._run_end(rows, index) - offset)
            record = self._decode(queue, first + index, offset, size, window[offset - window_at :])
            if isinstance(record, BadMessage):
                self.bad_count += 1
                yield record
            elif self._is_wanted(record):
                yield record

    @staticmethod
    def _run_end(rows: list[Any], index: int) -> int:
        start = end = rows[index][0]
        for offset, size, _ in rows[index:]:
            if offset < end or offset > end + _GAP_BYTES_MAX or offset + size > start + _READ_BYTES_MAX:
                break
            end = offset + size
        return int(max(end, start + max(0, min(rows[index][1], 64 << 20))))

    def _read(self, offset: int, size: int) -> bytes:
        file = self._layout.log.find(offset) if offset >= 0 else None
        if file is None or size <= 0:
            return b""
        return self._files.read_at(file.path, min(size, file.end - offset), offset - file.start)

    def _decode(self, queue: QueueDirectory, number: int, offset: int, size: int, data: bytes) -> Record | BadMessage:
        def bad(reason: str) -> BadMessage:
            return BadMessage(queue.topic, queue.queue_id, number, offset, reason)

        try:
            record = decode_record(data)
        except RecordMalformed as error:
            return bad(error.reason)
        place = (record.physical_offset, record.topic, record.queue_id, record.queue_offset)
        if place != (offset, queue.topic, queue.queue_id, number) or int.from_bytes(data[:4], "big") != size:
            return bad(
                f"the record there is message {record.queue_offset} of {record.topic}/{record.queue_id}, written for "
                f"log offset {record.physical_offset}"
            )
        return record

    def _is_wanted(self, record: Record) -> bool:
        part = self._part
        return not (
            (part.start_ms is not None and record.store_timestamp_ms < part.start_ms)
            or (part.stop_ms is not None and record.store_timestamp_ms >= part.stop_ms)
        )
