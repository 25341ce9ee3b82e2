"""An archive in a directory of this machine, or of a file system that it mounts; opening one there or in a bucket."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Self

from reput_broker.store.base.file_io import sync_directory
from reput_client.arrow.urls import directory_of, is_remote
from reput_pipeline.archives.layout import is_data_file
from reput_pipeline.archives.manifests import METADATA, Archive, ArchiveKind
from reput_pipeline.spark.errors import BucketLibraryMissing, NotAnArchive


class ArchiveDirectory(Archive):
    """An archive's directory; as a context manager it is locked against other jobs, for writing."""

    is_locked = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.where = str(root)
        self.directory = root / METADATA
        self._lock: int | None = None

    def read(self, name: str) -> bytes:
        """Return a file of the metadata."""
        return (self.directory / name).read_bytes()

    def write(self, name: str, data: bytes, *, new: bool) -> None:  # noqa: ARG002 (the lock excludes other jobs)
        """Write a file of the metadata atomically and sync it."""
        write_whole(self.directory / name, data)

    def remove(self, name: str) -> None:
        """Remove a file of the metadata, if it exists."""
        (self.directory / name).unlink(missing_ok=True)

    def metadata_names(self) -> list[str]:
        """Return the names of the metadata's files."""
        return [path.name for path in self.directory.glob("*")]

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
        elif any(path.name != METADATA for path in self.root.iterdir()):
            raise NotAnArchive(f"{self.root} is neither empty nor an archive; name an empty or a new directory")

    def begin(self, kind: ArchiveKind) -> None:
        """Create the directory and write the description."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for directory in (self.root.parent, self.root):
            sync_directory(directory)
        super().begin(kind)

    def new_file(self, path: PurePosixPath) -> NewLocalFile:
        """Return a data file to write."""
        return NewLocalFile(self.root / path)

    def sync(self, paths: Sequence[PurePosixPath]) -> None:
        """Sync the directories of data files, up to the archive's."""
        for directory in {self.root / path.parent for path in paths}:
            for level in (directory, *directory.parents):
                sync_directory(level)
                if level == self.root:
                    break

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

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.__exit__()
            raise NotAnArchive(f"another job writes to {self.root}; try again after it has ended") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class NewLocalFile:
    """A data file with a temporary name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary: Path | None = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        self.content: IO[bytes] = self._temporary.open("wb")

    def publish(self) -> int:
        """Sync it, and give it its name; return its size."""
        assert self._temporary is not None, "a file is published once"
        self.content.flush()
        os.fsync(self.content.fileno())
        size = self.content.tell()
        self.content.close()
        os.replace(self._temporary, self._path)
        self._temporary = None
        return size

    def discard(self) -> None:
        """Remove it, if it is not published."""
        if self._temporary is not None:
            self.content.close()
            self._temporary.unlink(missing_ok=True)
            self._temporary = None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically and sync it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


def open_archive(place: str, settings: Mapping[str, str]) -> Archive:
    """Return the archive at a path or URL, which need not exist.

    Args:
        place: the path of a directory, or a URL.
        settings: of the object store, as the storage options of Delta tables.

    Raises:
        BucketLibraryMissing: a URL needs a library that is not installed.
        NotAnArchive: a URL or a setting is not valid.
    """
    if not is_remote(place):
        return ArchiveDirectory(directory_of(place).absolute())
    try:
        from reput_pipeline.archives.bucket import BucketArchive
    except ModuleNotFoundError as missing:
        if missing.name != "obstore":
            raise
        raise BucketLibraryMissing(place) from missing
    return BucketArchive(place, settings)
