"""The epochs of a log: which master wrote which part of it (RocketMQ: EpochFileCache, CheckpointFile).

An epoch begins whenever a broker begins to take messages as master: at the end that its log then has. A master that
lost the unsynced end of its log therefore begins a new epoch below the end of the one before, and a slave that still
has that end sees from the epochs where its log must end.

`epochFileCheckpoint` has RocketMQ's format, in lines: the number of entries; the checksum of all their lines; and of
each epoch its number and start, `NUMBER-START`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.base.file_io import replace_file
from reput_protocol.errors import ReputError
from reput_protocol.kernel.records import crc32

_REMEDY = "restore the file from a copy; or move it away, and the next start as master begins with epoch 1"


class EpochBehind(ReputError):
    """An election gives an epoch that the log has passed. Nothing was changed."""


class Epoch(NamedTuple):
    """An epoch and the log offset where it begins."""

    number: int
    start_offset: int


class EpochFile:
    """The epochs of the log of one store, in the order in which they began. Its methods block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: tuple[Epoch, ...] = ()

    @property
    def last(self) -> int:
        """The highest number, 0 if there is none."""
        return max([epoch.number for epoch in self.entries], default=0)

    @property
    def exists(self) -> bool:
        """Whether an epoch was ever written."""
        return bool(self.entries)

    def load(self) -> None:
        """Read the file; a missing one has no entries.

        Raises:
            StoreDamaged: it is not such a file, or its checksum is wrong.
        """
        try:
            text = self.path.read_text("ascii")
        except FileNotFoundError:
            self.entries = ()
            return
        except UnicodeDecodeError:
            raise StoreDamaged(self.path, 0, "it is not text", _REMEDY) from None
        self.entries = decode_epochs(text, self.path)

    def begin(self, start_offset: int, min_offset: int, number: int = 0) -> Epoch:
        """Begin an epoch as master, durably.

        Args:
            start_offset: the end of the log.
            min_offset: where the log begins. The first epoch of a log that has none starts there.
            number: given by an election; 0 for the one after the last.

        Raises:
            EpochBehind: the number is not above all others.
        """
        if number and number <= self.last:
            raise EpochBehind(
                f"the election gives epoch {number}, but {self.path} has epoch {self.last} already: the engine has "
                "lost its state; restore its data, or set its epoch at least as high"
            )
        epoch = Epoch(number or self.last + 1, start_offset if self.entries else min_offset)
        self._write(_pruned((*self.entries, epoch), min_offset))
        return epoch

    def adopt(self, entries: Iterable[Epoch], end_offset: int) -> None:
        """Replace the epochs by those of the master that begin at or before the end of this log, durably."""
        found = tuple(epoch for epoch in entries if epoch.start_offset <= end_offset)
        if found != self.entries:
            self._write(found)

    def _write(self, entries: tuple[Epoch, ...]) -> None:
        replace_file(self.path, encode_epochs(entries).encode())
        self.entries = entries


def encode_epochs(entries: Iterable[Epoch]) -> str:
    """Return the text of a file with these entries."""
    lines = [f"{epoch.number}-{epoch.start_offset}\n" for epoch in entries]
    text = "".join(lines)
    return f"{len(lines)}\n{crc32(text.encode()) & 0x7FFF_FFFF}\n{text}"


def decode_epochs(text: str, path: Path) -> tuple[Epoch, ...]:
    """Return the entries of a file.

    Raises:
        StoreDamaged: the text is not that of such a file.
    """
    count, _, rest = text.partition("\n")
    checksum, _, body = rest.partition("\n")
    lines = body.splitlines()
    normal = "".join(f"{line}\n" for line in lines)
    if checksum != str(crc32(normal.encode()) & 0x7FFF_FFFF):
        raise StoreDamaged(path, len(count) + 1, "the checksum of its epochs is wrong", _REMEDY)
    if count != str(len(lines)):
        raise StoreDamaged(path, 0, f"it names {count!r} epochs and has {len(lines)}", _REMEDY)
    entries = []
    for line in lines:
        number, _, start = line.partition("-")
        if not (number.isdecimal() and start.isdecimal()):
            raise StoreDamaged(path, text.index(line), f"{line[:40]!r} is not an epoch", _REMEDY)
        entries.append(Epoch(int(number), int(start)))
    return tuple(entries)


def _pruned(entries: tuple[Epoch, ...], min_offset: int) -> tuple[Epoch, ...]:
    """Drop the epochs before the one that wrote the last byte before the beginning of the log.

    So nothing is dropped while the log begins at 0: an epoch that wrote nothing may have written more in another copy,
    and tells that both are the same log.
    """
    first = 0
    for index, epoch in enumerate(entries):
        if epoch.start_offset < min_offset:
            first = index
    return entries[first:]
