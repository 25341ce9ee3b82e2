"""Which records of the log belong to topics that have been deleted since.

Deleting a topic removes its queues, but its records stay in the log until their file expires, and a recovery that reads
them would bring the queues back. So a deletion leaves a mark: records of the topic below an offset do not count. The
marks are in `deletedTopics`, a JSON object from topic to log offset, which RocketMQ ignores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

from reput_broker.store.base.errors import ForeignFile


class DeletedTopics:
    """The marks of one directory, in memory and on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._deleted_below: dict[str, int] = {}

    def load(self) -> None:
        """Read the marks; a missing file means that there are none.

        Raises:
            ForeignFile: the file was not written by this class.
        """
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return
        try:
            marks = json.loads(text)
        except ValueError:
            marks = None
        if not isinstance(marks, dict) or not all(type(offset) is int for offset in marks.values()):
            raise ForeignFile(self._path, "it is not a JSON object from topic names to log offsets")
        self._deleted_below = marks

    def __len__(self) -> int:
        return len(self._deleted_below)

    def items(self) -> list[tuple[str, int]]:
        """Every deleted topic with the log offset below which its records do not count."""
        return list(self._deleted_below.items())

    def hides(self, topic: str, physical_offset: int) -> bool:
        """Whether a record of `topic` at this log offset belongs to a deleted topic."""
        return physical_offset < self._deleted_below.get(topic, 0)

    def end_offset(self, topic: str) -> int:
        """Records of the topic before this log offset are deleted; 0 if the topic was never deleted."""
        return self._deleted_below.get(topic, 0)

    def add(self, topics: Collection[str], end_offset: int) -> None:
        """Durably mark the records of topics below `end_offset` as deleted. Raises OSError if that fails."""
        before = self._deleted_below
        self._deleted_below = {**before, **dict.fromkeys(topics, end_offset)}
        try:
            self._save()
        except OSError:
            self._deleted_below = before
            raise

    def forget_below(self, min_offset: int) -> None:
        """Drop marks whose records have all left the log, which now starts at `min_offset`."""
        kept = {topic: end for topic, end in self._deleted_below.items() if end > min_offset}
        if len(kept) != len(self._deleted_below):
            self._deleted_below = kept
            self._save()

    def end_at(self, max_offset: int) -> None:
        """Limit every mark to the end of the log.

        A power failure may take back records that a deletion covered; those that replace them are not deleted.
        """
        if any(end > max_offset for end in self._deleted_below.values()):
            self._deleted_below = {topic: min(end, max_offset) for topic, end in self._deleted_below.items()}
            self._save()

    def _save(self) -> None:
        temporary = self._path.with_name(self._path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(json.dumps(self._deleted_below, sort_keys=True).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
