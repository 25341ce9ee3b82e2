"""The files of a store directory: which there are, and their bytes, on this machine or in a bucket."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from reput_client.arrow.urls import directory_of, is_remote
from reput_protocol.store.files import standing_for
from reput_protocol.store.layout import QueueDirectory, StoreLayout, Stream, read_stream
from reput_protocol.store.unit_files import FileReads, OpenFiles

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class StoreFiles(FileReads, Protocol):
    """The files of one directory; `close` ends their use.

    Attributes:
        layout: the directory on this machine; None in a bucket.
    """

    @property
    def layout(self) -> StoreLayout | None:
        """The directory on this machine; None in a bucket."""
        ...

    def what_is_missing(self) -> str:
        """Return why this is not a store directory, or an empty text."""
        ...

    def log(self) -> Stream:
        """Return the files of the log that there are now."""
        ...

    def queues(self) -> list[QueueDirectory]:
        """Return the queues that there were at the first call, with their files."""
        ...

    def queue(self, topic: str, queue_id: int) -> Stream:
        """Return the files of a queue that there are now."""
        ...

    def exists(self, path: Path) -> bool:
        """Tell whether a file is still there."""
        ...

    def read_config(self, name: str) -> bytes:
        """Return a file of the directory `config`.

        Raises:
            FileNotFoundError: there is none of this name.
        """
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


class LocalFiles(OpenFiles):
    """The files of a directory of this machine."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root: Final = root

    @cached_property
    def layout(self) -> StoreLayout:
        """The whole directory, as it was at the first use."""
        return StoreLayout(self._root)

    def what_is_missing(self) -> str:
        """Return why this is not a store directory, or an empty text."""
        if not self._root.is_dir():
            return "there is no such directory"
        return "" if (self._root / "commitlog").is_dir() else "it has no directory commitlog"

    def log(self) -> Stream:
        """Return the files of the log that there are now."""
        return read_stream((self._root / "commitlog",))

    def queues(self) -> list[QueueDirectory]:
        """Return the queues that there were at the first call, with their files."""
        return self.layout.queues

    def queue(self, topic: str, queue_id: int) -> Stream:
        """Return the files of a queue that there are now."""
        return read_stream((standing_for(self._root / "consumequeue") / topic / str(queue_id),))

    def exists(self, path: Path) -> bool:
        """Tell whether a file is still there."""
        return path.exists()

    def read_config(self, name: str) -> bytes:
        """Return a file of the directory `config`."""
        return (self._root / "config" / name).read_bytes()


def open_store(path: str, filesystem: FileSystem | None = None) -> StoreFiles:
    """Return the files of a store directory.

    Args:
        path: of the directory, or its URL; with `filesystem` a path in that.
        filesystem: None for this machine, or for the one that the URL names.

    Raises:
        NotAStore: it is a URL of no file system that pyarrow knows.
        BucketUnavailable, BucketRefused: the file system of the URL is away, or rejects a request.
    """
    if filesystem is None and not is_remote(path):
        return LocalFiles(directory_of(path))
    from reput_client.arrow.bucket_files import BucketFiles

    return BucketFiles(path, filesystem)
