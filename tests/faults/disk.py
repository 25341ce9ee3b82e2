"""A simulated disk: what every file and directory holds, what of it is durable, and what is still on its way.

Events are applied in the order in which a real run made them (`recorder.py`). A sync makes durable what one file holds,
or which names one directory has; everything since then is pending, and a power cut may take it back
(`Disk.after_power_cut`). A killed process takes nothing back (`Disk.after_kill`), but its last write may have stopped
anywhere.

Assumed of the disk: sectors of 512 bytes are written whole or not at all, names come and go as a whole.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SECTOR_BYTES = 512
PAGE_BYTES = 4096
ROOT = 0


class Write(NamedTuple):
    """Bytes of a file changed; `mapped` through a mapping, byte after byte, otherwise by a system call."""

    node: int
    position: int
    data: bytes
    mapped: bool


class Resize(NamedTuple):
    """A file has another length; what it gained is zero."""

    node: int
    size: int


class SyncFile(NamedTuple):
    """What a file held and how long it was became durable."""

    node: int


class Link(NamedTuple):
    """A name appeared in a directory, and with it a new, empty node."""

    directory: int
    name: str
    node: int
    is_directory: bool


class Unlink(NamedTuple):
    """A name went away."""

    directory: int
    name: str


class Rename(NamedTuple):
    """A name took the place of another in the same directory, at once."""

    directory: int
    source: str
    target: str


class Exchange(NamedTuple):
    """Two names in the same directory changed places, at once."""

    directory: int
    source: str
    target: str


class Move(NamedTuple):
    """A name went from one directory to another: it may be lost in neither, and for a while be in both."""

    directory: int
    source: str
    to_directory: int
    target: str
    number: int
    """Tells one from another that is like it."""


class SyncDirectory(NamedTuple):
    """The names in a directory became durable."""

    node: int


FileChange = Write | Resize
NameChange = Link | Unlink | Rename | Exchange | Move
Event = FileChange | SyncFile | NameChange | SyncDirectory


@dataclass(slots=True)
class FileState:
    """One file."""

    durable: bytes = b""
    now: bytearray = field(default_factory=bytearray)
    pending: list[FileChange] = field(default_factory=list)


@dataclass(slots=True)
class DirectoryState:
    """One directory: name to node."""

    durable: dict[str, int] = field(default_factory=dict)
    now: dict[str, int] = field(default_factory=dict)
    pending: list[NameChange] = field(default_factory=list)


class Disk:
    """Files and directories by node number; node 0 is the root, whose own name is durable."""

    def __init__(self) -> None:
        self.files: dict[int, FileState] = {}
        self.directories: dict[int, DirectoryState] = {ROOT: DirectoryState()}
        self.moved: dict[int, int] = {}
        """The node of each move by the move's number."""

    @classmethod
    def of(cls, root: Path) -> Disk:
        """Return a disk that holds a directory tree, all of it durable."""
        disk = cls()
        numbers = iter(range(1, 1 << 31))

        def add(path: Path, state: DirectoryState) -> None:
            for entry in sorted(path.iterdir()):
                node = next(numbers)
                state.durable[entry.name] = state.now[entry.name] = node
                if entry.is_dir():
                    disk.directories[node] = DirectoryState()
                    add(entry, disk.directories[node])
                else:
                    data = entry.read_bytes()
                    disk.files[node] = FileState(data, bytearray(data))

        add(root, disk.directories[ROOT])
        return disk

    def apply(self, event: Event) -> None:
        """Let one more event have happened."""
        match event:
            case Write() | Resize():
                file = self.files[event.node]
                _change(file.now, event)
                file.pending.append(event)
            case SyncFile(node):
                file = self.files[node]
                file.durable = bytes(file.now)
                file.pending.clear()
            case SyncDirectory(node):
                self._sync_names(node)
            case Move():
                moved = self.directories[event.directory].now.pop(event.source)
                self.directories[event.to_directory].now[event.target] = moved
                self.moved[event.number] = moved
                for node in (event.directory, event.to_directory):
                    self.directories[node].pending.append(event)
            case Link() | Unlink() | Rename() | Exchange():
                directory = self.directories[event.directory]
                if isinstance(event, Link):
                    if event.is_directory:
                        self.directories[event.node] = DirectoryState()
                    else:
                        self.files[event.node] = FileState()
                _rename(directory.now, event)
                directory.pending.append(event)

    def _sync_names(self, node: int) -> None:
        """Make the names in a directory durable; what was moved out of it is durable where it is now before that."""
        directory = self.directories[node]
        pending = list(directory.pending)
        directory.durable = dict(directory.now)
        directory.pending.clear()
        for event in pending:
            if isinstance(event, Move) and event.directory == node and self._is_pending(event):
                self._sync_names(event.to_directory)

    def _is_pending(self, move: Move) -> bool:
        return move in self.directories[move.to_directory].pending

    # -- what may be left ----------------------------------------------------------------------------------

    def after_kill(self, last: Event | None, rng: random.Random, target: Path) -> bool:
        """Write to `target` what a killed process leaves: everything, its last write perhaps not whole.

        A copy into a mapping can stop at any byte, a system call between two sectors.

        Returns:
            Whether the last write was cut short.
        """
        contents: dict[int, bytes] = {}
        if isinstance(last, Write) and rng.random() < 0.7:
            file = self.files[last.node]
            before = _replayed(file, len(file.pending) - 1)
            kept = rng.randrange(len(last.data) + 1)
            if not last.mapped:
                kept -= min(kept, (last.position + kept) % SECTOR_BYTES)
            _change(before, last._replace(data=last.data[:kept]))
            contents[last.node] = bytes(before)
        self._lay_out(
            target,
            ROOT,
            {node: directory.now for node, directory in self.directories.items()},
            lambda node: contents.get(node, self.files[node].now),
        )
        return bool(contents)

    def after_power_cut(self, rng: random.Random, target: Path) -> None:
        """Write to `target` what a power cut may leave: what is durable, and some of what is pending."""
        # Whether the disk kept the order, lost or kept all, or did as it liked, for data and for names.
        how_data = rng.choice(("sectors", "sectors", "pages", "lost", "kept", "order"))
        how_names = rng.choice(("any", "any", "lost", "kept", "order"))
        share = rng.choice((0.1, 0.5, 0.9))
        changes = {node: _surviving_changes(state, how_names, share, rng) for node, state in self.directories.items()}
        names: dict[int, dict[str, int]] = {}
        for node, state in self.directories.items():
            names[node] = dict(state.durable)
            for event in changes[node]:
                if not isinstance(event, Move):
                    _rename(names[node], event)
                elif node == event.to_directory:
                    names[node][event.target] = self.moved[event.number]
                elif not self._is_pending(event) or event in changes[event.to_directory]:
                    names[node].pop(event.source, None)
        self._lay_out(target, ROOT, names, lambda node: _surviving(self.files[node], how_data, share, rng))

    def _lay_out(self, target: Path, node: int, names: dict[int, dict[str, int]], content_of) -> None:  # type: ignore[no-untyped-def]
        target.mkdir()
        for name, child in names[node].items():
            if child in self.directories:
                self._lay_out(target / name, child, names, content_of)
            else:
                with open(target / name, "wb") as file:
                    file.write(content_of(child))


def _change(content: bytearray, event: FileChange) -> None:
    if isinstance(event, Resize):
        if event.size < len(content):
            del content[event.size :]
        else:
            content.extend(bytes(event.size - len(content)))
        return
    end = event.position + len(event.data)
    if end > len(content):
        content.extend(bytes(end - len(content)))
    content[event.position : end] = event.data


def _rename(names: dict[str, int], event: Link | Unlink | Rename | Exchange) -> None:
    if isinstance(event, Link):
        names[event.name] = event.node
    elif isinstance(event, Unlink):
        names.pop(event.name, None)
    elif isinstance(event, Exchange):
        if event.source in names and event.target in names:
            names[event.source], names[event.target] = names[event.target], names[event.source]
    elif event.source in names:
        names[event.target] = names.pop(event.source)


def _replayed(file: FileState, count: int) -> bytearray:
    content = bytearray(file.durable)
    for event in file.pending[:count]:
        _change(content, event)
    return content


def _surviving(file: FileState, how: str, share: float, rng: random.Random) -> bytes | bytearray:
    """What is left of one file."""
    if not file.pending or how == "lost":
        return file.durable
    if how == "kept":
        return file.now
    if how == "order":
        count = rng.randrange(len(file.pending) + 1)
        content = _replayed(file, count)
        if count < len(file.pending) and isinstance(torn := file.pending[count], Write):
            kept = rng.randrange(len(torn.data) + 1)
            kept -= min(kept, (torn.position + kept) % SECTOR_BYTES)
            _change(content, torn._replace(data=torn.data[:kept]))
        return content
    unit = SECTOR_BYTES if how == "sectors" else PAGE_BYTES
    sizes = [len(file.durable)]
    versions: dict[int, list[Write]] = defaultdict(list)
    for event in file.pending:
        if isinstance(event, Resize):
            sizes.append(event.size)
            continue
        sizes.append(max(sizes[-1], event.position + len(event.data)))
        for number in range(event.position // unit, (event.position + len(event.data) - 1) // unit + 1):
            versions[number].append(event)
    size = sizes[-1] if rng.random() < share else rng.choice(sizes)
    content = bytearray(file.durable.ljust(max(size, len(file.now)), b"\0"))
    for number, writes in versions.items():
        count = rng.randrange(len(writes) + 1) if rng.random() < 0.5 else len(writes) * (rng.random() < share)
        start, stop = number * unit, (number + 1) * unit
        for event in writes[: int(count)]:
            begin = max(start, event.position)
            end = min(stop, event.position + len(event.data))
            content[begin:end] = event.data[begin - event.position : end - event.position]
    return content[:size]


def _surviving_changes(state: DirectoryState, how: str, share: float, rng: random.Random) -> list[NameChange]:
    """Which of the pending changes to one directory's names are left."""
    if not state.pending or how == "kept":
        return state.pending
    if how == "order":
        return state.pending[: rng.randrange(len(state.pending) + 1)]
    if how == "any":
        return [event for event in state.pending if rng.random() < share]
    return []
