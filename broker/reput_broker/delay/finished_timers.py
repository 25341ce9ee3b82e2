"""What a master's timer had finished, as its slave received it: the answer to 60, and `config/masterTimer.json`.

A slave has no wheel. When it becomes the master, it reads the timer's queue again, and would have to read the whole log
to find what was delivered. With this file it passes over what the old master had finished, and reads the log only from
`replayFrom` on.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from reput_broker.delay.timer_message_store import FinishedTimers
from reput_broker.tables.config_file import ConfigFile

_HEAD = struct.Struct(">qqq")
_HEAD_BYTES = 56
_OURS = struct.Struct(">qqqq")


def encode_finished(finished: FinishedTimers) -> bytes:
    """Return what follows RocketMQ's 56 bytes in the answer to 60."""
    assert finished.replay_from is not None
    return _OURS.pack(finished.read_ms, finished.queue_offset, finished.late_from, finished.replay_from)


def read_answer(body: bytes) -> dict[str, Any]:
    """Return the members of the file from an answer to 60, of Reput or RocketMQ.

    Raises:
        ValueError: it is too short.
    """
    if len(body) >= _HEAD_BYTES + _OURS.size:
        read_ms, queue_offset, late_from, replay_from = _OURS.unpack_from(body, _HEAD_BYTES)
        return {
            "readMs": read_ms,
            "queueOffset": queue_offset,
            "lateFrom": late_from,
            "replayFrom": replay_from,
        }
    if len(body) < _HEAD_BYTES:
        raise ValueError(f"{len(body)} bytes are no timer checkpoint, which has {_HEAD_BYTES}")
    read_ms, _, queue_offset = _HEAD.unpack_from(body)
    return {"readMs": read_ms, "queueOffset": queue_offset, "lateFrom": None, "replayFrom": None}


class FinishedTimersFile:
    """`config/masterTimer.json`. Reading and writing block.

    Args:
        path: of the file; not read yet.
    """

    def __init__(self, path: Path) -> None:
        self.file = ConfigFile(path)

    def load(self) -> FinishedTimers | None:
        """Read the file; None if there is none.

        Raises:
            ConfigFileDamaged, OSError: it cannot be read.
        """
        members = self.file.load().members
        if not members:
            return None
        late_from = members.get("lateFrom")
        return FinishedTimers(
            int(members["readMs"]),
            int(members["queueOffset"]),
            1 << 62 if late_from is None else int(late_from),
            members.get("replayFrom"),
        )
