"""The intent file, which decides that a batch will be published.

`staging/intent` is written and synced before the first record of a batch is appended, and removed once the batch's
marker is durable. A start that finds it completes the batch. It names the stagings in their order, and where each queue
ended before: published messages of the batch follow there, in that order.

The file is JSON with a last line that holds the CRC-32 of what precedes it, and is replaced by a rename.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from reput_broker.store.errors import StoreDamaged
from reput_broker.store.file_io import sync_directory, write_all
from reput_protocol.kernel.records import crc32

_NAME: Final = "intent"
_CRC_DIGITS: Final = 8


class QueuePlace(NamedTuple):
    """A queue of the batch, with `published` messages before the queue offset `look_from`."""

    topic: str
    queue_id: int
    published: int
    look_from: int
    """Messages of the batch that are not counted in `published` are here or later."""


@dataclass(slots=True)
class Intent:
    """A decided batch."""

    query_id: str
    batch_id: int
    staging_ids: list[str]
    messages: int
    queues: list[QueuePlace] = field(default_factory=list)


class IntentFile:
    """`staging/intent`. All methods block."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / _NAME

    def write(self, intent: Intent) -> None:
        """Decide the batch, durably.

        Raises:
            DiskFull, OSError, FlushFailed: it may or may not be decided; `read` tells.
        """
        text = json.dumps(asdict(intent), indent=1).encode() + b"\n"
        data = text + b"%08x\n" % crc32(text)
        fresh = self.path.with_name(f"{_NAME}.new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data, 0, fresh)
            os.fsync(fd)
        finally:
            os.close(fd)
        fresh.replace(self.path)
        sync_directory(self.path.parent)

    def read(self) -> Intent | None:
        """Return the decided batch, or None.

        Raises:
            StoreDamaged: the file is damaged, so the batch is unknown.
            OSError: it cannot be read.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        text, seal = data[: -_CRC_DIGITS - 1], data[-_CRC_DIGITS - 1 : -1]
        if seal != b"%08x" % crc32(text):
            raise StoreDamaged(
                self.path,
                0,
                "its checksum is wrong",
                "a batch of a sink may be published in part; move the file away to start without completing it",
            )
        members: dict[str, Any] = json.loads(text)
        members["queues"] = [QueuePlace(*place) for place in members["queues"]]
        return Intent(**members)

    def remove(self) -> None:
        """Remove the intent of a published batch. The removal need not be durable, because the marker is.

        Raises:
            OSError: it cannot be removed.
        """
        self.path.unlink(missing_ok=True)

    def withdraw(self) -> None:
        """Undo a failed write, durably.

        Raises:
            OSError, FlushFailed: the batch may be decided.
        """
        self.path.unlink(missing_ok=True)
        self.path.with_name(f"{_NAME}.new").unlink(missing_ok=True)
        sync_directory(self.path.parent)
