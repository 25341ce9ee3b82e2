"""The one batch that is being published: what decides that it will be, whatever happens to the process.

`staging/intent` is written and synced before the first record of a batch is appended, and removed once the marker of
the batch is on the disk. A start that finds it completes the batch. It names the stagings in their order, and where
each queue ended before: what of the batch is in the log already lies behind that, in the order of the stagings.

The file is JSON with a last line that holds the CRC-32 of what is before it. It appears whole, by a rename.
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
    """A queue of the batch: so many of its messages are published, all before this queue offset."""

    topic: str
    queue_id: int
    published: int
    look_from: int
    """Messages of the batch that are not counted in `published` lie here or later."""


@dataclass(slots=True)
class Intent:
    """A batch that has been decided."""

    query_id: str
    batch_id: int
    staging_ids: list[str]
    messages: int
    queues: list[QueuePlace] = field(default_factory=list)


class IntentFile:
    """`staging/intent`. Everything blocks."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / _NAME

    def write(self, intent: Intent) -> None:
        """Decide the batch: durable on return.

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
        """Return the batch that has been decided and is not known to be published, or None.

        Raises:
            StoreDamaged: there is an intent, and nobody can say which batch it means.
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
                "it does not pass its checksum",
                "a batch of a sink may be published in part; move the file away to start without completing it",
            )
        members: dict[str, Any] = json.loads(text)
        members["queues"] = [QueuePlace(*place) for place in members["queues"]]
        return Intent(**members)

    def remove(self) -> None:
        """The batch is published and its marker durable. The removal itself need not be durable: the marker tells.

        Raises:
            OSError: it cannot be removed.
        """
        self.path.unlink(missing_ok=True)

    def withdraw(self) -> None:
        """Undo a write that has failed: nothing is decided on return, also after a power cut.

        Raises:
            OSError, FlushFailed: it may be decided all the same.
        """
        self.path.unlink(missing_ok=True)
        self.path.with_name(f"{_NAME}.new").unlink(missing_ok=True)
        sync_directory(self.path.parent)
