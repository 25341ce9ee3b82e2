"""Writing the journal of the topics' changes; `reput_protocol.store.topic_journal` has its form."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import structlog

from reput_broker.store.base.file_io import set_aside, sync_data, sync_names
from reput_protocol.store.topic_journal import (
    FileIdentity,
    TopicChange,
    TopicJournalContents,
    change_line,
    head_line,
    next_line,
    read_topic_journal,
)

log = structlog.get_logger(__name__)


class TopicJournal:
    """The journal of a topics.json, in the same directory. All methods but `size` block.

    Attributes:
        size: bytes of good lines; 0 without a file.
        is_usable: whether it takes lines; not after a failure, nor while its file is replaced, until `remove`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.is_usable = True
        self._fd = -1

    def load(self, data: bytes) -> TopicJournalContents | None:
        """Read the journal; return it if it continues the topics.json with these bytes.

        One that the file supersedes is removed. One that belongs to another file, or is damaged, is set aside and
        logged; what a damaged one still says counts.

        Raises:
            OSError: it cannot be read or set aside.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        contents = read_topic_journal(content)
        if contents.continues_file(data):
            if contents.damaged_at is None:
                self.size = contents.end
                return contents
            self._set_aside("damaged", f"bad line at byte {contents.damaged_at}, with good ones after it")
            return contents
        if contents.is_superseded_by(data) and contents.damaged_at is None:
            self.path.unlink()
        else:
            self._set_aside(
                "foreign",
                "it does not continue topics.json, which another program wrote, or a save after an error of the disk",
            )
        return None

    def _set_aside(self, why: str, reason: str) -> None:
        aside = set_aside(self.path, why)
        log.error(
            "topic_journal_set_aside",
            path=str(self.path),
            reason=reason,
            kept_as=str(aside),
            hint="compare reput topic list with the topics that it names, and create those that are missing",
        )

    def append(self, change: TopicChange, continues: FileIdentity) -> None:
        """Write a change durably.

        Args:
            continues: the topics.json on disk.

        Raises:
            OSError: the change is not in the journal.
        """
        self._write(change_line(change), continues)

    def announce(self, next_file: FileIdentity) -> None:
        """Note durably that a topics.json with all changes is about to replace the present one. Raises OSError."""
        if self.size and self.is_usable:
            self._write(next_line(next_file), None)

    def _write(self, line: bytes, continues: FileIdentity | None) -> None:
        is_new = self.size == 0
        if is_new:
            assert continues is not None
            line = head_line(continues) + line
        try:
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._fd = os.open(self.path, flags, 0o644)
                os.ftruncate(self._fd, self.size)  # of a line that a kill has left
            os.fspath(self.path)  # which checks that the directory is still this broker's (checked_path.py)
            if os.write(self._fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync_data(self._fd)
            if is_new:
                sync_names(self.path.parent)
        except OSError as error:
            # A line that is perhaps on disk: the next save writes the file whole.
            self.is_usable = False
            with suppress(OSError):
                if self._fd >= 0:
                    os.ftruncate(self._fd, self.size)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.size += len(line)

    def remove(self) -> None:
        """Remove the file, all of whose changes are in the topics.json. Raises OSError; `size` is then as before."""
        self.close()
        self.path.unlink(missing_ok=True)
        self.size, self.is_usable = 0, True

    def close(self) -> None:
        """Close the file; its lines stay. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
