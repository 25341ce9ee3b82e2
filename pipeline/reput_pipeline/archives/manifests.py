"""The metadata of an archive: its description, and for each batch a plan before and a manifest after it.

    _reput/archive.json            the kind of archive, and its partitioning
    _reput/00000000000000000007.plan.json   the ranges of batch 7, durable before its first file is written
    _reput/00000000000000000007.json        its files and the ends of all queues, written after the files are durable

A batch without a manifest was interrupted; the next run first executes its plan again, with the same file names.
Readers of Parquet ignore names that start with `_` or a dot.
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from types import TracebackType
from typing import IO, Any, Final, Protocol, Self

from reput_client.arrow.queues import Generations, QueueKey, QueueRange
from reput_pipeline.spark.errors import ArchiveInUse, NotAnArchive

VERSION: Final = 1
METADATA: Final = "_reput"
"""The directory of the metadata."""
DESCRIPTION: Final = "archive.json"
"""The name of the description among the metadata."""
_DIGITS: Final = 20
_PLAN: Final = re.compile(rf"[0-9]{{{_DIGITS}}}\.plan\.json")
_MANIFEST: Final = re.compile(rf"[0-9]{{{_DIGITS}}}\.json")


@dataclass(frozen=True)
class ArchiveKind:
    """The description of an archive; messages of another `source` are refused."""

    kind: str
    source: str
    partition_by: tuple[str, ...] = ()
    tags: str | None = None
    """The tags that the last run has archived, `*` for all; None if not known."""


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


class NewFile(Protocol):
    """A data file that has no name in the archive before it is published."""

    @property
    def content(self) -> IO[bytes]:
        """Where it is written."""
        ...

    def publish(self) -> int:
        """Give it its name, durably once `Archive.sync` returns; return its size."""
        ...

    def discard(self) -> None:
        """Remove what is not published."""
        ...


class Archive(ABC):
    """An archive; as a context manager it is open for writing.

    Attributes:
        where: its path or URL.
        is_locked: whether the context manager excludes other jobs. Else several may write the files of a batch, which
            have the same names and messages, and the manifest of one of them is written.
    """

    where: str
    is_locked: bool

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return a file of the metadata.

        Raises:
            FileNotFoundError: it does not exist.
        """

    @abstractmethod
    def write(self, name: str, data: bytes, *, new: bool) -> None:
        """Write a file of the metadata, whole and durably.

        Args:
            name: of the file.
            data: its content.
            new: whether to leave an existing one as it is.

        Raises:
            FileExistsError: with `new`, it exists with another content.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file of the metadata, if it exists."""

    @abstractmethod
    def metadata_names(self) -> list[str]:
        """Return the names of the metadata's files."""

    @abstractmethod
    def check_new(self) -> None:
        """Check that a new archive can be created here.

        Raises:
            NotAnArchive: it is not empty, or cannot be created.
        """

    @abstractmethod
    def new_file(self, path: PurePosixPath) -> NewFile:
        """Return a data file to write, by its path in the archive."""

    @abstractmethod
    def sync(self, paths: Sequence[PurePosixPath]) -> None:
        """Make the names of published data files durable."""

    @abstractmethod
    def remove_strays(self) -> list[str]:
        """Remove data files that no manifest names, nor another job's next one may name; return their paths."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def kind(self) -> ArchiveKind | None:
        """Return the description; None if there is none.

        Raises:
            NotAnArchive: it cannot be read.
        """
        try:
            found = json.loads(self.read(DESCRIPTION))
            if found["version"] != VERSION:
                raise NotAnArchive(
                    f"{self.where}/{METADATA}/{DESCRIPTION} has version {found['version']}; this program supports "
                    f"{VERSION}"
                )
            return ArchiveKind(found["kind"], found["source"], tuple(found["partition_by"]), found.get("tags"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotAnArchive(f"{self.where}/{METADATA}/{DESCRIPTION} cannot be read: {error}") from None

    def existing(self) -> ArchiveKind:
        """Return the description.

        Raises:
            NotAnArchive: the directory is not an archive.
        """
        kind = self.kind()
        if kind is None:
            raise NotAnArchive(f"{self.where} is not an archive: it has no {METADATA}/{DESCRIPTION}")
        return kind

    def begin(self, kind: ArchiveKind) -> None:
        """Write the description, and create what it needs."""
        self.write(DESCRIPTION, description(kind), new=False)

    def manifests(self) -> Iterator[dict[str, Any]]:
        """Yield the manifests in order."""
        for name in self._manifest_names():
            yield json.loads(self.read(name))

    def last(self) -> dict[str, Any] | None:
        """Return the last manifest."""
        names = self._manifest_names()
        return json.loads(self.read(names[-1])) if names else None

    def _manifest_names(self) -> list[str]:
        return sorted(name for name in self.metadata_names() if _MANIFEST.fullmatch(name))

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
            plan = json.loads(self.read(_plan_name(number)))
        except FileNotFoundError:
            return None
        tasks = tuple(
            tuple(QueueRange(_queue(part), int(part[3]), int(part[4])) for part in task) for task in plan["tasks"]
        )
        return ArchiveBatch(number, tasks, _generations(plan))

    def old_plans(self) -> list[str]:
        """Return the names of plans of batches that have a manifest: of jobs that were killed, or were too late."""
        names = self.metadata_names()
        return [name for name in names if _PLAN.fullmatch(name) and name.replace(".plan", "") in names]

    def next_number(self) -> int:
        """Return the number of the next batch."""
        last = self.last()
        return 0 if last is None else int(last["batch"]) + 1

    def plan(self, tasks: Sequence[Sequence[QueueRange]], generations: Generations) -> ArchiveBatch:
        """Write the plan of the next batch; call it before any file is written.

        Raises:
            ArchiveInUse: another job has planned it.
        """
        topics = {(part.queue.topic, part.queue.broker) for task in tasks for part in task}
        known = {topic: generations[topic] for topic in topics if topic in generations}
        batch = ArchiveBatch(self.next_number(), tuple(tuple(task) for task in tasks), known)
        rows = [[[*part.queue, part.start, part.end] for part in task] for task in batch.tasks]
        plan = {"version": VERSION, "batch": batch.number, "tasks": rows, "generations": _rows(known)}
        self._write_new(_plan_name(batch.number), plan)
        return batch

    def complete(self, batch: ArchiveBatch, files: Sequence[ArchiveFile], **more: object) -> None:
        """Write the manifest of a batch whose files are durable, and remove its plan.

        Raises:
            ArchiveInUse: another job has written it.
        """
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
        self._write_new(f"{batch.number:0{_DIGITS}d}.json", manifest)
        self.remove(_plan_name(batch.number))

    def _write_new(self, name: str, value: object) -> None:
        try:
            self.write(name, _encoded(value), new=True)
        except FileExistsError:
            raise ArchiveInUse(self.where, name) from None


def description(kind: ArchiveKind) -> bytes:
    """Return the content of the description."""
    return _encoded({"version": VERSION, **asdict(kind)})


def _queue(entry: Sequence[Any]) -> QueueKey:
    return QueueKey(str(entry[0]), str(entry[1]), int(entry[2]))


def _rows(generations: Generations) -> list[list[str]]:
    return [[*topic, generation] for topic, generation in sorted(generations.items())]


def _generations(written: Mapping[str, Any]) -> Generations:
    return {(str(topic), str(broker)): str(found) for topic, broker, found in written.get("generations", ())}


def _plan_name(number: int) -> str:
    return f"{number:0{_DIGITS}d}.plan.json"


def _encoded(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
