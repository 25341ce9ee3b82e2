"""Export the messages of a topic from a directory, each verified."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from reput_broker.tools.dump import NotThere
from reput_protocol.errors import RecordMalformed
from reput_protocol.record.record import Record, decode_record
from reput_protocol.store.layout import QueueDirectory, StoreLayout
from reput_protocol.store.unit import PRE_BLANK_SIZE
from reput_protocol.store.unit_files import OpenFiles, UnitFiles

_CHUNK_UNITS = 4096
_READ_BYTES_MAX = 4 << 20
_GAP_BYTES_MAX = 64 << 10


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

    def _decode(
        self, queue: QueueDirectory, number: int, offset: int, size: int, data: bytes
    ) -> Record | BadMessage:
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
