"""The extended entries of a queue, which RocketMQ keeps beside it with `enableConsumeQueueExt` (ConsumeQueueExt).

Their form, and what the ConsumeQueue unit then holds instead of its tags code, stands in `extension_unit.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

from reput_broker.store.queue.extension_unit import EXT_UNIT, MIN_ADDRESS
from reput_broker.store_tools.layout import Stream, read_stream
from reput_broker.store_tools.unit_files import OpenFiles


class ExtUnits:
    """The extended entries of one queue."""

    def __init__(self, stream: Stream, files: OpenFiles) -> None:
        self._stream = stream
        self._files = files

    @classmethod
    def of_queue(cls, root: Path, topic: str, queue_id: int, files: OpenFiles) -> ExtUnits | None:
        """Return a queue's extended entries, None if it has no directory for them."""
        directory = root / "consumequeue_ext" / topic / str(queue_id)
        return cls(read_stream((directory,)), files) if directory.is_dir() else None

    def difference(self, address: int, tags_code: int) -> str:
        """Say how the entry at an address contradicts its record; empty if it does not."""
        position = address - MIN_ADDRESS
        file = self._stream.find(position)
        if file is None:
            return f"its extended entry at {position} is in no file"
        head = os.pread(self._files.fd(file.path), EXT_UNIT.size, position - file.start)
        if len(head) < EXT_UNIT.size:
            return f"its extended entry at {position} is cut short"
        size, code, _, bitmap = EXT_UNIT.unpack(head)
        if bitmap < 0 or size != EXT_UNIT.size + bitmap:
            return f"its extended entry at {position} of {file.path} has size {size} and a bitmap of {bitmap} bytes"
        if code != tags_code:
            return (
                f"its extended entry at {position} of {file.path} has tags code {code}, should be {tags_code}"
            )
        return ""
