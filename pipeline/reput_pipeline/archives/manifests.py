"""The metadata of an archive: its description, and for each batch a plan before and a manifest after it.

    _reput/archive.json            the kind of archive, and its partitioning
    _reput/00000000000000000007.plan.json   the ranges of batch 7, synced before its first file is written
    _reput/00000000000000000007.json        its files and the ends of all queues, written after the files are synced

A batch without a manifest was interrupted; the next run first executes its plan again, with the same file names.
Readers of Parquet ignore names that start with `_` or a dot.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from reput_broker.store.file_io import sync_directory
from reput_client.arrow.queues import Generations, QueueKey, QueueRange
from reput_pipeline.archives.names import is_data_file
from reput_pipeline.spark.errors import NotAnArchive

VERSION: Final = 1
_DIRECTORY: Final = "_reput"
_DIGITS: Final = 20


@dataclass(frozen=True)
class ArchiveKind:
    """The description of an archive; messages of another `source` are refused."""

    kind: str
    source: str
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArchiveFile:
    """A file; `path` is relative to the archive, times are store times in ms."""

    path: str
    topic: str
    rows: int
    bytes: int
    first_ms: int | None
    last_ms: int | None


@dataclass(frozen=True)
class ArchiveBatch:
    """A batch: its number and the ranges of each task."""

    number: int
    tasks: tuple[tuple[QueueRange, ...], ...]
    generations: Generations
    """Of the topics when it was planned, if known."""

    @property
    def ranges(self) -> list[QueueRange]:
        """All ranges."""
        return [part for task in self.tasks for part in task]

    @property
    def size(self) -> int:
        """The number of messages."""
        return sum(part.size for part in self.ranges)


class ArchiveDirectory:
    """An archive's directory; as a context manager it is locked against other jobs, for writing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / _DIRECTORY
        self._lock: int | None = None

    def kind(self) -> ArchiveKind | None:
        """Return the description; None if there is none.

        Raises:
            NotAnArchive: it cannot be read.
        """
        path = self.directory / "archive.json"
        try:
            found = json.loads(path.read_bytes())
            if found["version"] != VERSION:
                raise NotAnArchive(f"{path} has version {found['version']}; this program supports {VERSION}")
            return ArchiveKind(found["kind"], found["source"], tuple(found["partition_by"]))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotAnArchive(f"{path} cannot be read: {error}") from None

    def existing(self) -> ArchiveKind:
        """Return the description.

        Raises:
            NotAnArchive: the directory is not an archive.
        """
        kind = self.kind()
        if kind is None:
            raise NotAnArchive(f"{self.root} is not an archive: it has no {_DIRECTORY}/archive.json")
        return kind

    def check_new(self) -> None:
        """Check that a new archive can be created here.

        Raises:
            NotAnArchive: the directory is not empty, or cannot be created.
        """
        above = next(path for path in (self.root, *self.root.parents) if path.exists())
        if not above.is_dir():
            raise NotAnArchive(f"{above} is not a directory")
        if above != self.root:
            if not os.access(above, os.W_OK | os.X_OK):
                raise NotAnArchive(f"no directory can be created in {above}: it is not writable")
        elif any(path.name != _DIRECTORY for path in self.root.iterdir()):
            raise NotAnArchive(
                f"{self.root} is neither empty nor an archive; name an empty or a new directory"
            )

    def begin(self, kind: ArchiveKind) -> None:
        """Create the directory and write the description."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for directory in (self.root.parent, self.root):
            sync_directory(directory)
        write_whole(self.directory / "archive.json", {"version": VERSION, **asdict(kind)})

    def __enter__(self) -> ArchiveDirectory:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.__exit__()
            raise NotAnArchive(f"another job writes to {self.root}; try again after it has ended") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def manifests(self) -> Iterator[dict[str, Any]]:
        """Yield the manifests in order."""
        for path in sorted(self.directory.glob("[0-9]" * _DIGITS + ".json")):
            yield json.loads(path.read_bytes())

    def last(self) -> dict[str, Any] | None:
        """Return the last manifest."""
        paths = sorted(self.directory.glob("[0-9]" * _DIGITS + ".json"))
        return json.loads(paths[-1].read_bytes()) if paths else None

    def files(self) -> list[ArchiveFile]:
        """Return the files of all complete batches."""
        return [ArchiveFile(**entry) for manifest in self.manifests() for entry in manifest["files"]]

    def ends(self) -> dict[QueueKey, int]:
        """Return the archived end of every queue, also of empty ones."""
        last = self.last()
        return {} if last is None else {_queue(entry): int(entry[3]) for entry in last["ends"]}

    def generations(self) -> Generations:
        """Return the generations of the topics, as far as known."""
        return _generations(self.last() or {})

    def unfinished(self) -> ArchiveBatch | None:
        """Return the interrupted batch, if any."""
        number = self.next_number()
        try:
            plan = json.loads(self._plan(number).read_bytes())
        except FileNotFoundError:
            return None
        tasks = tuple(
            tuple(QueueRange(_queue(part), int(part[3]), int(part[4])) for part in task)
            for task in plan["tasks"]
        )
        return ArchiveBatch(number, tasks, _generations(plan))

    def next_number(self) -> int:
        """Return the number of the next batch."""
        last = self.last()
        return 0 if last is None else int(last["batch"]) + 1

    def plan(self, tasks: Sequence[Sequence[QueueRange]], generations: Generations) -> ArchiveBatch:
        """Write the plan of the next batch; call it before any file is written."""
        topics = {(part.queue.topic, part.queue.broker) for task in tasks for part in task}
        known = {topic: generations[topic] for topic in topics if topic in generations}
        batch = ArchiveBatch(self.next_number(), tuple(tuple(task) for task in tasks), known)
        rows = [[[*part.queue, part.start, part.end] for part in task] for task in batch.tasks]
        plan = {
            "version": VERSION,
            "batch": batch.number,
            "tasks": rows,
            "generations": _rows(known),
        }
        write_whole(self._plan(batch.number), plan)
        return batch

    def complete(self, batch: ArchiveBatch, files: Sequence[ArchiveFile], **more: object) -> None:
        """Write the manifest of a batch whose files are synced, and remove its plan."""
        paths = [file.path for file in files]
        assert len({*paths}) == len(paths), f"batch {batch.number} has written a file twice"
        ends = self.ends()
        for part in batch.ranges:
            ends[part.queue] = max(ends.get(part.queue, 0), part.end)
        manifest = {
            "version": VERSION,
            "batch": batch.number,
            "written_at_ms": time.time_ns() // 1_000_000,
            "rows": sum(file.rows for file in files),
            "ranges": [[*part.queue, part.start, part.end] for part in batch.ranges],
            "ends": [[*queue, end] for queue, end in sorted(ends.items())],
            "generations": _rows({**self.generations(), **batch.generations}),
            **more,
            "files": [asdict(file) for file in files],
        }
        write_whole(self.directory / f"{batch.number:0{_DIGITS}d}.json", manifest)
        self._plan(batch.number).unlink(missing_ok=True)

    def remove_strays(self) -> list[str]:
        """Remove data files that an interrupted batch has left: those that no manifest names."""
        known = {file.path for file in self.files()}
        removed = []
        for path in sorted(self.root.glob("topic=*/**/*.parquet*")):
            below = path.relative_to(self.root).as_posix()
            name = path.name
            is_temporary = name.startswith(".") and ".parquet." in name
            if is_temporary or (is_data_file(name) and below not in known):
                path.unlink()
                removed.append(below)
        return removed

    def _plan(self, number: int) -> Path:
        return self.directory / f"{number:0{_DIGITS}d}.plan.json"


def _queue(entry: Sequence[Any]) -> QueueKey:
    return QueueKey(str(entry[0]), str(entry[1]), int(entry[2]))


def _rows(generations: Generations) -> list[list[str]]:
    return [[*topic, generation] for topic, generation in sorted(generations.items())]


def _generations(written: Mapping[str, Any]) -> Generations:
    return {(str(topic), str(broker)): str(found) for topic, broker, found in written.get("generations", ())}


def write_whole(path: Path, value: object) -> None:
    """Write a JSON file atomically and sync it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w") as file:
        json.dump(value, file, separators=(",", ":"), ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)
