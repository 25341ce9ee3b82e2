"""Record everything that a run of the store does to its directory, as events that `disk.Disk` understands.

Writes, syncs, creations, renames, removals and truncations are seen where the program calls the operating system;
writes into the mapping of a CommitLog file where `MappedFile` makes them, each copy by itself. Anything that comes
another way (a file of Python's own `open`, another mapping) is found before every sync and rename by comparing the
directory with what is known of it.

The run must be single-threaded: what is in a file when its sync begins is what the sync makes durable.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from faults.disk import ROOT, Disk, Event, Exchange, Link, Move, Rename, Resize, SyncDirectory, SyncFile, Unlink, Write
from reput_broker.store.log import mapped_file
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.opening import directory_swap

_read_link = os.readlink


class Recorder:
    """A recording of one directory, between `with` and the end of its block."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.initial = Disk.of(root)
        """What was there before, all of it durable."""
        self.events: list[Event] = []
        self._disk = Disk.of(root)
        self._nodes = count(1 + max([ROOT, *self._disk.files, *self._disk.directories]))
        self._by_path: dict[str, int] = {self.root: ROOT}
        self._learn(self.root, ROOT)
        self._patches = pytest.MonkeyPatch()

    def _learn(self, path: str, node: int) -> None:
        for name, child in self._disk.directories[node].now.items():
            self._by_path[f"{path}/{name}"] = child
            if child in self._disk.directories:
                self._learn(f"{path}/{name}", child)

    def __enter__(self) -> Recorder:
        patch = self._patches.setattr
        for name in ("fsync", "fdatasync"):
            patch(os, name, self._syncing(getattr(os, name)))
        for name in ("pwrite", "write", "ftruncate", "posix_fallocate"):
            patch(os, name, self._writing(getattr(os, name)))
        for name in ("replace", "rename"):
            patch(os, name, self._renaming(getattr(os, name)))
        for name in ("unlink", "remove", "rmdir", "mkdir"):
            patch(os, name, self._then_looking(getattr(os, name)))
        patch(os, "open", self._opening(os.open))
        patch(directory_swap, "exchange", self._exchanging(directory_swap.exchange))
        # The small appends of a workload go both ways, too: copied into the mapping, and written.
        patch(mapped_file, "_WRITTEN_FROM_BYTES", 500)
        real_init = MappedFile.__init__

        def mapped(file: MappedFile, *arguments: Any, **options: Any) -> None:
            real_init(file, *arguments, **options)
            if self._is_inside(str(file.path)):
                file._view = file._sink = _RecordedView(file._view, str(file.path), self)  # type: ignore[assignment]

        patch(MappedFile, "__init__", mapped)
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.undo()
        self.look()

    def start(self) -> Disk:
        """Return a copy of the disk as it was before the first event, to be stepped through `events`."""
        return _copy(self.initial)

    # -- noticing ------------------------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self._disk.apply(event)

    def _is_inside(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + "/")

    def _node_of(self, fd: int) -> tuple[str, int | None]:
        path = _read_link(f"/proc/self/fd/{fd}")
        return path, self._by_path.get(path)

    def wrote_mapped(self, path: str, position: int, data: bytes) -> None:
        """Note a copy into a mapping."""
        node = self._by_path.get(path)
        if node is not None:
            self._note(Write(node, position, data, mapped=True))

    def look(self) -> None:
        """Find what changed without being noticed."""
        self._look_at(self.root, ROOT)

    def _look_at(self, path: str, node: int) -> None:
        known = self._disk.directories[node].now
        found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in os.scandir(path)}
        for name in [name for name in known if name not in found]:
            self._gone(f"{path}/{name}")
        for name in sorted(found):
            below = f"{path}/{name}"
            if name not in self._disk.directories[node].now:
                self._by_path[below] = next(self._nodes)
                self._note(Link(node, name, self._by_path[below], found[name]))
            if found[name]:
                self._look_at(below, self._by_path[below])
            else:
                self._compare(below)

    def _gone(self, path: str) -> None:
        directory, _, name = path.rpartition("/")
        for below in [known for known in self._by_path if known == path or known.startswith(path + "/")]:
            del self._by_path[below]
        self._note(Unlink(self._by_path[directory], name))

    def _compare(self, path: str) -> None:
        """Note how a file differs from what is known of it."""
        node = self._by_path[path]
        known = self._disk.files[node].now
        with open(path, "rb") as file:
            found = file.read()
        if found == known:
            return
        if len(found) != len(known):
            self._note(Resize(node, len(found)))
        if found == known:
            return
        first = next(index for index, (a, b) in enumerate(zip(found, known, strict=True)) if a != b)
        last = next(index for index in range(len(found) - 1, -1, -1) if found[index] != known[index])
        self._note(Write(node, first, found[first : last + 1], mapped=False))

    # -- the calls -----------------------------------------------------------------------------------------

    def _syncing(self, real: Callable[[int], None]) -> Callable[[Any], None]:
        def sync(fd: Any) -> None:
            number = fd if isinstance(fd, int) else fd.fileno()
            path = _read_link(f"/proc/self/fd/{number}")
            inside = self._is_inside(path)
            if inside:
                self.look()
            real(number)
            node = self._by_path.get(path)
            if inside and node is not None:
                is_directory = stat.S_ISDIR(os.fstat(number).st_mode)
                self._note(SyncDirectory(node) if is_directory else SyncFile(node))

        return sync

    def _writing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(fd: int, *arguments: Any) -> Any:
            result = real(fd, *arguments)
            path, node = self._node_of(fd)
            if node is not None:
                self._compare(path)
            return result

        return write

    def _opening(self, real: Callable[..., int]) -> Callable[..., int]:
        def open_(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            fd = real(path, flags, *arguments, **options)
            if flags & (os.O_CREAT | os.O_TRUNC):
                full = _read_link(f"/proc/self/fd/{fd}")
                directory, _, name = full.rpartition("/")
                if self._is_inside(full) and directory in self._by_path:
                    if full not in self._by_path:
                        self._by_path[full] = next(self._nodes)
                        self._note(Link(self._by_path[directory], name, self._by_path[full], False))
                    self._compare(full)
            return fd

        return open_

    def _renaming(self, real: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any, **options: Any) -> None:
            before, after = os.path.abspath(source), os.path.abspath(target)
            inside = self._is_inside(before)
            if inside:
                self.look()
            real(source, target, **options)
            if inside:
                directory, _, name = before.rpartition("/")
                to_directory, _, new_name = after.rpartition("/")
                for path, node in self._take_out(before).items():
                    self._by_path[after + path] = node
                node, to_node = self._by_path[directory], self._by_path[to_directory]
                if node == to_node:
                    self._note(Rename(node, name, new_name))
                else:
                    self._note(Move(node, name, to_node, new_name, len(self.events)))

        return rename

    def _exchanging(self, real: Callable[[Path, Path], bool]) -> Callable[[Path, Path], bool]:
        def exchange(first: Path, second: Path) -> bool:
            one, other = os.path.abspath(first), os.path.abspath(second)
            if self._is_inside(one):
                self.look()
            done = real(first, second)
            if done and self._is_inside(one):
                nodes, others = self._take_out(one), self._take_out(other)
                for path, below in ((other, nodes), (one, others)):
                    self._by_path.update({path + name: node for name, node in below.items()})
                directory, _, name = one.rpartition("/")
                self._note(Exchange(self._by_path[directory], name, other.rpartition("/")[2]))
            return done

        return exchange

    def _take_out(self, top: str) -> dict[str, int]:
        """Forget the paths of a name and of everything below it; return them, relative to it, with their nodes."""
        paths = [path for path in self._by_path if f"{path}/".startswith(f"{top}/")]
        return {path.removeprefix(top): self._by_path.pop(path) for path in paths}

    def _then_looking(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, *arguments: Any, **options: Any) -> None:
            real(path, *arguments, **options)
            full = os.path.abspath(path)
            if options or not self._is_inside(full):
                self.look()
            elif full in self._by_path:
                self._gone(full)
            else:
                directory, _, name = full.rpartition("/")
                self._by_path[full] = next(self._nodes)
                self._note(Link(self._by_path[directory], name, self._by_path[full], True))

        return call


def _copy(disk: Disk) -> Disk:
    copy = Disk()
    copy.moved = dict(disk.moved)
    for node, file in disk.files.items():
        copy.files[node] = type(file)(file.durable, bytearray(file.now), list(file.pending))
    for node, directory in disk.directories.items():
        copy.directories[node] = type(directory)(dict(directory.durable), dict(directory.now), list(directory.pending))
    return copy


class _RecordedView:
    """The part of a memoryview that `MappedFile` uses, noting what is copied into it."""

    def __init__(self, view: memoryview, path: str, recorder: Recorder) -> None:
        self._view = view
        self._path = path
        self._recorder = recorder

    def __getitem__(self, at: Any) -> Any:
        return self._view[at]

    def __setitem__(self, at: slice, data: Any) -> None:
        self._view[at] = data
        self._recorder.wrote_mapped(self._path, at.start, bytes(data))

    def __len__(self) -> int:
        return len(self._view)

    def release(self) -> None:
        self._view.release()
