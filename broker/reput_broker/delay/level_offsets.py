"""The saved progress of the delay levels: `config/delayOffset.json` (RocketMQ: ScheduleMessageService).

`offsetTable` is RocketMQ's: for each level the next queue offset in its queue of `SCHEDULE_TOPIC_XXXX`. The member
`reput` is ours: `replayFrom`, behind which the log holds every copy of messages at or beyond those offsets, and
`cancelOffset`, the first relevant record of our topic of cancelled messages. A RocketMQ broker drops the member when it
writes the file; a start then uses `offsetTable` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reput_broker.tables.config_file import ConfigFile, DataVersion, encode

_OURS = "reput"


class LevelProgress(NamedTuple):
    """The content of the file."""

    offsets: Mapping[int, int]
    """Next queue offset by level; a missing level begins at 0."""
    replay_from: int | None
    """Copies of later messages are in the log from here on; None if RocketMQ wrote the file."""
    cancel_offset: int = 0
    """The first relevant record in the queue of cancelled messages."""


class DelayOffsetFile:
    """The file. `save` may run in a worker thread, one call at a time."""

    def __init__(self, path: Path) -> None:
        self.file = ConfigFile(path)
        self._version = DataVersion()
        self._written: LevelProgress | None = None

    def load(self) -> LevelProgress | None:
        """Read the file; None if it does not exist.

        Raises:
            ConfigFileDamaged: neither the file nor its backup is usable; nothing was changed.
            OSError: a file cannot be read.
        """
        loaded = self.file.load()
        if loaded.path is None:
            return None
        self._version = DataVersion.from_json(loaded.members.get("dataVersion"))
        table = loaded.members.get("offsetTable")
        offsets = {int(level): offset for level, offset in _numbers(table).items() if level.isdecimal()}
        ours = _numbers(loaded.members.get(_OURS))
        return LevelProgress(offsets, ours.get("replayFrom"), ours.get("cancelOffset", 0))

    def save(self, progress: LevelProgress, now_ms: int) -> None:
        """Replace the file durably unless its content is the same. Blocks.

        Raises:
            OSError: it could not be written; the old file remains.
        """
        if progress == self._written:
            return
        self._version = self._version.next(now_ms)
        self.file.save(encode(self.members(progress)))
        self._written = progress

    def members(self, progress: LevelProgress) -> dict[str, Any]:
        """Return the file's members, RocketMQ's in its order."""
        return {
            "dataVersion": self._version.to_json(),
            "offsetTable": {str(level): offset for level, offset in sorted(progress.offsets.items())},
            _OURS: {"cancelOffset": progress.cancel_offset, "replayFrom": progress.replay_from},
        }


def _numbers(members: object) -> dict[str, int]:
    if not isinstance(members, Mapping):
        return {}
    return {str(name): value for name, value in members.items() if type(value) is int and value >= 0}
