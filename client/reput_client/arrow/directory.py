"""A store directory: its topics, queues and their bounds, and which parts of its log a reading covers.

Nothing is locked, created or written. For most messages the log is read sequentially; for few queues or tags the
queues' units, which hold the tag hashes, are followed. Both yield the same messages. In a bucket the log is always read
sequentially: following units would request parts of it once for each queue, and a request takes longer than reading the
bytes between two records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from reput_client.arrow.queues import Bounds, Generations, QueueKey, QueueRange, TopicKey
from reput_client.arrow.store_files import open_store
from reput_client.arrow.urls import without_secret
from reput_client.errors import DamagedStore, NotAStore
from reput_protocol.codes import Perm
from reput_protocol.commands.base import read_json
from reput_protocol.commands.topic import GENERATION_ATTRIBUTE, QUEUES_MAX
from reput_protocol.errors import BodyMalformed
from reput_protocol.names import reply_topic
from reput_protocol.record.layout import STORE_TIME_BYTES, read_head, store_timestamp_at
from reput_protocol.store.layout import Stream
from reput_protocol.store.topic_journal import TABLE, TOPIC_JOURNAL, with_journal
from reput_protocol.store.unit import PRE_BLANK_SIZE, UNIT
from reput_protocol.store.unit_files import UnitFiles

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class StoreDirectory:
    """The queues of one directory of Reput or Apache RocketMQ; a context manager that closes its files.

    Args:
        path: of the directory, or its URL; with `filesystem` a path in that.
        filesystem: None for this machine, or for the one that the URL names.

    Attributes:
        path: as given, without a password.
        layout: the files of the directory; None in a bucket.
        configured: the settings of topics by topic; some may have no message yet.

    Raises:
        NotAStore: the directory does not exist, cannot be read, or has no log.
        BucketUnavailable, BucketRefused: the file system of the URL is away, or rejects a request. All methods that
            read raise them.
    """

    def __init__(self, path: str, filesystem: FileSystem | None = None) -> None:
        self.path = without_secret(path)
        self._files = open_store(path, filesystem)
        try:
            if missing := self._files.what_is_missing():
                raise NotAStore(self.path, missing)
            self.layout = self._files.layout
            self.log: Stream = self._files.log()
            found = self._files.queues()
        except OSError as error:
            raise NotAStore(self.path, f"it cannot be read: {error}") from None
        self._directories = {QueueKey(queue.topic, "", queue.queue_id): queue for queue in found if queue.stream.files}
        self._bounds: dict[QueueKey, Bounds] = {}
        self.configured = self._configured_topics()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def queue_keys(self) -> list[QueueKey]:
        """Return every queue that has files, or that its topic's settings have: it is empty."""
        without_files = (
            QueueKey(topic, "", queue_id)
            for topic, entry in self.configured.items()
            for queue_id in range(_queues(entry))
        )
        return list(dict.fromkeys((*self._directories, *without_files)))

    @property
    def topics(self) -> set[str]:
        """The topics that have queues or settings."""
        return {queue.topic for queue in self._directories} | self.configured.keys()

    def _configured_topics(self) -> dict[str, dict[str, Any]]:
        journal: bytes | None = None
        try:
            # Before the file, which has what the journal had if it is newer.
            with suppress(FileNotFoundError):
                journal = self._files.read_config(TOPIC_JOURNAL)
            data = self._files.read_config("topics.json")
            table = with_journal(read_json(data, loose_bytes_max=len(data)), data, journal).get(TABLE)
        except (OSError, BodyMalformed):
            return {}
        if not isinstance(table, dict):
            return {}
        return {name: entry for name, entry in table.items() if isinstance(entry, dict)}

    @property
    def clusters(self) -> set[str]:
        """The names of clusters, which have a topic of their name and one for replies."""
        return {
            name
            for name, entry in self.configured.items()
            if entry.get("perm") == Perm.READ_WRITE | Perm.INHERIT and reply_topic(name) in self.configured
        }

    @property
    def generations(self) -> Generations:
        """The generations of the topics in the directory's topic table."""
        found: dict[TopicKey, str] = {}
        for topic, entry in self.configured.items():
            attributes = entry.get("attributes")
            known = attributes if isinstance(attributes, dict) else {}
            found[topic, ""] = str(known.get(GENERATION_ATTRIBUTE, ""))
        return found

    def _units(self, queue: QueueKey) -> UnitFiles:
        return UnitFiles(self._directories[queue].stream, self._files)

    def bounds(self, queues: Sequence[QueueKey]) -> dict[QueueKey, Bounds]:
        """Return the bounds of queues; a queue starts at its first record that is still in the log."""
        for queue in queues:
            if queue not in self._directories:
                self._bounds[queue] = Bounds(0, 0)
            elif queue not in self._bounds:
                units = self._units(queue)
                low = _first(units.first, units.end, partial(self._is_live, units))
                self._bounds[queue] = Bounds(low, units.end)
        return {queue: self._bounds[queue] for queue in queues}

    def _is_live(self, units: UnitFiles, number: int) -> bool:
        physical_offset, size, _ = UNIT.unpack(units.read_bytes(number * UNIT.size, UNIT.size))
        return bool(size != PRE_BLANK_SIZE and physical_offset >= self.log.min_offset)

    def physical_offset(self, queue: QueueKey, offset: int) -> tuple[int, int]:
        """Return start and end of a message's record in the log, from its unit."""
        at, size, _ = UNIT.unpack(self._units(queue).read_bytes(offset * UNIT.size, UNIT.size))
        return at, at + size

    def offset_at(self, queue: QueueKey, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, or the end of the queue.

        The binary search relies on ascending store times, as RocketMQ's does.

        Raises:
            DamagedStore: a record that the search needs is damaged.
        """
        low, high = self.bounds([queue])[queue]
        return _first(low, high, lambda number: self._stored_at(queue, number) >= timestamp_ms)

    def _stored_at(self, queue: QueueKey, offset: int) -> int:
        at, _ = self.physical_offset(queue, offset)
        file = self.log.find(at)
        data = b"" if file is None else self._files.read_at(file.path, STORE_TIME_BYTES, at - file.start)
        if len(data) < STORE_TIME_BYTES or not read_head(data).is_message:
            path, position = self.log.place(at)
            raise DamagedStore(
                f"{path} at byte", position, f"message {offset} of {queue} should be here, but there is no record"
            )
        return store_timestamp_at(data)


def _queues(entry: Mapping[str, Any]) -> int:
    """Return the number of queues that the settings of a topic have; of settings that are damaged, none."""
    number = entry.get("readQueueNums")
    return number if isinstance(number, int) and number <= QUEUES_MAX else 0


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first number in `[low, high)` for which the monotonic `holds` is true, else `high`."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


_SEGMENT_SHARE: Final = 0.5
"""Wanted share of the messages in a part of the log from which it is read sequentially."""


class WantedRange(NamedTuple):
    """A range of a queue, and the log offsets around its records."""

    queue: QueueKey
    start: int
    end: int
    log_start: int
    log_end: int


class Stretch(NamedTuple):
    """A part of one log file as log offsets, from the start of a record to that of another."""

    start: int
    end: int


def located(store: StoreDirectory, part: QueueRange) -> WantedRange:
    """Return a range that is not empty, with its place in the log."""
    log_start, _ = store.physical_offset(part.queue, part.start)
    _, log_end = store.physical_offset(part.queue, part.end - 1)
    return WantedRange(*part, log_start, log_end)


def is_sequential(store: StoreDirectory, wanted: Sequence[WantedRange], *, all_tags: bool) -> bool:
    """Tell whether the wanted ranges are read sequentially, in the order of the log."""
    if not wanted or store.layout is None:
        return bool(wanted)
    return all_tags and share_of(store, wanted) >= _SEGMENT_SHARE


def share_of(store: StoreDirectory, wanted: Sequence[WantedRange]) -> float:
    """Return the share of the wanted messages among those in their part of the log; at most 1, estimated.

    It is 1 in a bucket, where it would take requests for all queues.
    """
    if store.layout is None:
        return 1.0
    low = min(part.log_start for part in wanted)
    high = max(part.log_end for part in wanted)
    count = sum(part.end - part.start for part in wanted)
    return count / max(count, _messages_between(store, low, high))


def _messages_between(store: StoreDirectory, low: int, high: int) -> int:
    """Estimate the number of messages in a part of the log; all if it is most of the log."""
    keys = store.queue_keys()
    total = sum(high - low for low, high in store.bounds(keys).values())
    files = store.log.files
    log_bytes = max(1, max(high, _last_end(store)) - files[0].start) if files else 1
    return int(total * min(1.0, (high - low) / log_bytes))


def _last_end(store: StoreDirectory) -> int:
    """Return the end of the last message of any queue in the log."""
    bounds = store.bounds(store.queue_keys())
    return max(
        (store.physical_offset(queue, high - 1)[1] for queue, (low, high) in bounds.items() if low < high), default=0
    )


def log_files(store: StoreDirectory, wanted: Sequence[WantedRange]) -> list[Stretch]:
    """Return the parts of the log files that contain the wanted ranges."""
    low = min(part.log_start for part in wanted)
    high = max(part.log_end for part in wanted)
    return [
        Stretch(max(low, file.start), min(high, file.end))
        for file in store.log.files
        if file.start < high and file.end > low
    ]


def divided(store: StoreDirectory, wanted: Sequence[WantedRange], parts: int) -> list[list[Stretch]]:
    """Divide the log's bytes into tasks; files are split at known starts of records."""
    stretches = log_files(store, wanted)
    total = sum(end - start for start, end in stretches)
    tasks: list[list[Stretch]] = [[]]
    done = 0
    for start, end in stretches:
        while start < end:
            goal = total * len(tasks) // parts
            stop = end
            if done + end - start > goal and len(tasks) < parts:
                stop = min(end, _record_from(store, wanted, start + goal - done))
            if stop > start:
                tasks[-1].append(Stretch(start, stop))
                done += stop - start
                start = stop
            if done >= goal and len(tasks) < parts:
                tasks.append([])
    return [task for task in tasks if task]


def _record_from(store: StoreDirectory, wanted: Sequence[WantedRange], offset: int) -> int:
    """Return the start of the next record of a wanted queue at or after a log offset."""
    found = max(part.log_end for part in wanted)
    for queue, start, end, log_start, log_end in sorted(wanted, key=lambda part: part.start - part.end)[:8]:
        if log_start >= offset:
            found = min(found, log_start)
        elif log_end > offset:
            low, high = start, end
            while low < high:
                middle = (low + high) // 2
                if store.physical_offset(queue, middle)[0] >= offset:
                    high = middle
                else:
                    low = middle + 1
            if low < end:
                found = min(found, store.physical_offset(queue, low)[0])
    return found
