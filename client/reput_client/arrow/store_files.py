"""The files of a store directory: which there are, and their bytes, on this machine or in a file system of pyarrow.

Files in a bucket are listed, and read by blocks: a block is requested once while it is in the cache, several at the
same time if a file is read from one block to the next. Nothing is written to a disk.
"""

from __future__ import annotations

import errno
import os
import re
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, TypeVar
from urllib.parse import urlsplit

from reput_client.arrow.urls import directory_of, is_remote, without_secret
from reput_client.errors import BucketRefused, BucketUnavailable, NotAStore
from reput_client.transport.backoff import Backoff
from reput_protocol.store.files import replaced, standing_for
from reput_protocol.store.layout import QueueDirectory, StoreLayout, Stream, most_common_size, read_stream, stream_of
from reput_protocol.store.unit_files import FileReads, OpenFiles

if TYPE_CHECKING:
    import pyarrow as pa
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
    return BucketFiles(path, filesystem)


P = ParamSpec("P")
T = TypeVar("T")

BLOCK_BYTES: Final = 2 << 20
BLOCKS_MAX: Final = 64
"""Blocks in the cache: 128 MiB."""
_AHEAD: Final = 8
"""Blocks that are requested before they are needed; as many requests are made at the same time."""
_HANDLES_MAX: Final = 256
_ATTEMPTS: Final = 4
"""Of a request; the libraries of the stores repeat it themselves, too."""
_PAUSE_FIRST_S: Final = 0.2
_PAUSE_MAX_S: Final = 5.0
_REFUSED: Final = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|NO_SUCH_BUCKET"
    r"|HTTP status 40[13]|Permission ?Denied|Unauthenticated|Unauthorized|Forbidden|AuthenticationFailed",
    re.IGNORECASE,
)
_REMEDIES: Final = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, to a user who may list and read the "
    "bucket, and AWS_ENDPOINT_URL if it is not at Amazon",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the key file of an account that may list and read the bucket",
}
_OTHER_REMEDY: Final = "check its name, and the credentials that pyarrow.fs describes for this file system"


class BucketFiles:
    """The files of one directory.

    Args:
        url: of the directory, such as `s3://bucket/store`; with `filesystem` a path in it.
        filesystem: None for the one that the URL names.

    Raises:
        NotAStore: pyarrow knows no such file system.
        BucketUnavailable, BucketRefused: the file system does not respond, or rejects requests. All methods raise them.
    """

    layout: Final = None

    def __init__(self, url: str, filesystem: FileSystem | None = None) -> None:
        self._url = without_secret(url)
        self._lock = Lock()
        self._closed = Event()
        self._handles: OrderedDict[Path, pa.NativeFile] = OrderedDict()
        self._sizes: dict[Path, int] = {}
        self._blocks: OrderedDict[tuple[Path, int], Future[bytes]] = OrderedDict()
        self._filesystem, root = (filesystem, url) if filesystem is not None else self._asked(None, _resolved, url)
        self._root = Path(root)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_AHEAD, "reput-bucket")

    def what_is_missing(self) -> str:
        """Return why this is not a store directory, or an empty text."""
        return "" if self._found(self._root / "commitlog") else "it has no files under commitlog/"

    def log(self) -> Stream:
        """Return the files of the log that there are now."""
        directory = self._root / "commitlog"
        return stream_of((directory,), self._found(directory))

    def queues(self) -> list[QueueDirectory]:
        """Return the queues, with their files."""
        place = self._root / "consumequeue"
        found = self._found(place, recursive=True) or self._found(replaced(place), recursive=True)
        of_queue: dict[Path, list[tuple[Path, int]]] = {}
        for path, size in found:
            directory = path.parent
            if directory.name.isascii() and directory.name.isdecimal():
                of_queue.setdefault(directory, []).append((path, size))
        size = most_common_size(size for files in of_queue.values() for _, size in files)
        return [
            QueueDirectory(directory.parent.name, int(directory.name), stream_of((directory,), files, size))
            for directory, files in sorted(of_queue.items())
        ]

    def queue(self, topic: str, queue_id: int) -> Stream:
        """Return the files of a queue that there are now."""
        place = self._root / "consumequeue"
        directory = place / topic / str(queue_id)
        files = self._found(directory)
        if not files:
            directory = replaced(place) / topic / str(queue_id)
            files = self._found(directory)
        return stream_of((directory,), files)

    def exists(self, path: Path) -> bool:
        """Tell whether a file is still there."""
        info = self._asked(None, self._filesystem.get_file_info, path.as_posix())
        return bool(info.is_file)

    def read_config(self, name: str) -> bytes:
        """Return a file of the directory `config`."""
        path = self._root / "config" / name

        def whole() -> bytes:
            with self._filesystem.open_input_stream(path.as_posix()) as stream:
                data: bytes = stream.read()
                return data

        return self._asked(path, whole)

    def read_at(self, path: Path, size: int, position: int) -> bytes:
        """Return `size` bytes of a file from a position on, fewer at its end."""
        data = bytearray(size)
        del data[self.read_into(path, memoryview(data), position) :]
        return bytes(data)

    def read_into(self, path: Path, view: memoryview, position: int) -> int:
        """Fill a view from a file from a position on; return how many bytes were read, fewer at its end."""
        done = 0
        for start, block in self._wanted(path, position, position + len(view)):
            data = block.result()
            piece = memoryview(data)[max(0, position - start) : position + len(view) - start]
            view[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def end_of_data(self, path: Path, size: int) -> int:
        """Return the position after the last non-zero byte of the first `size` bytes of a file."""
        for start, block in reversed(self._wanted(path, 0, size)):
            data = block.result()[: size - start].rstrip(b"\0")
            if data:
                return start + len(data)
        return 0

    def close(self) -> None:
        """Forget the cache; requests that are under way are not waited for, and not repeated."""
        self._closed.set()
        if "_threads" in vars(self):
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._blocks.clear()
        self._handles.clear()

    def _found(self, directory: Path, *, recursive: bool = False) -> list[tuple[Path, int]]:
        from pyarrow.fs import FileSelector  # here and below: pyarrow.fs is for buckets only

        selector = FileSelector(directory.as_posix(), allow_not_found=True, recursive=recursive)
        found = [
            (Path(info.path), int(info.size))
            for info in self._asked(None, self._filesystem.get_file_info, selector)
            if info.is_file
        ]
        self._sizes.update(found)
        return found

    def _wanted(self, path: Path, start: int, end: int) -> list[tuple[int, Future[bytes]]]:
        """Return the blocks that hold a part of a file, with their positions; request those that are not cached."""
        size = self._sizes[path]
        end = min(end, size)
        if start >= end:
            return []
        first, after = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        ahead = after
        if (path, first - 1) in self._blocks:
            ahead = min(after + _AHEAD, -(-size // BLOCK_BYTES))
        found = []
        for number in range(first, ahead):
            block = self._blocks.get((path, number))
            if block is None:
                block = self._threads.submit(self._fetched, path, number)
                self._blocks[path, number] = block
            if number < after:
                found.append((number * BLOCK_BYTES, block))
        for number in range(first, after):
            self._blocks.move_to_end((path, number))
        while len(self._blocks) > max(BLOCKS_MAX, len(found)):
            self._blocks.popitem(last=False)[1].cancel()
        return found

    def _fetched(self, path: Path, number: int) -> bytes:
        position = number * BLOCK_BYTES
        size = min(BLOCK_BYTES, self._sizes[path] - position)

        def read() -> bytes:
            data: bytes = self._handle(path).read_at(size, position)
            return data

        return self._asked(path, read)

    def _handle(self, path: Path) -> pa.NativeFile:
        with self._lock:
            handle = self._handles.get(path)
            if handle is None:
                handle = self._handles[path] = self._filesystem.open_input_file(path.as_posix())
                if len(self._handles) > _HANDLES_MAX:
                    self._handles.popitem(last=False)
            return handle

    def _asked(self, path: Path | None, ask: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call `ask`, again after an error.

        Args:
            path: of the file that is read, if one is.

        Raises:
            FileNotFoundError: there is no such file.
            BucketUnavailable, BucketRefused: as the class.
        """
        pauses = Backoff(_PAUSE_FIRST_S, _PAUSE_MAX_S)
        for left in reversed(range(_ATTEMPTS)):
            try:
                return ask(*arguments, **named)
            except OSError as error:
                if path is not None and self._is_gone(path, error):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path.as_posix()) from None
                if isinstance(error, PermissionError) or _REFUSED.search(str(error)):
                    remedy = _REMEDIES.get(urlsplit(self._url).scheme, _OTHER_REMEDY)
                    raise BucketRefused(self._url, str(error), remedy) from None
                if not left or self._closed.wait(pauses.next_delay_s()):
                    raise BucketUnavailable(self._url, str(error)) from None
        raise AssertionError("the last attempt returns or raises")

    def _is_gone(self, path: Path, error: OSError) -> bool:
        """Tell whether a file is missing: a store may report the end of one that is open as any error."""
        if isinstance(error, FileNotFoundError):
            return True
        from pyarrow.fs import FileType

        with suppress(OSError):
            return bool(self._filesystem.get_file_info(path.as_posix()).type == FileType.NotFound)
        return False


def _resolved(url: str) -> tuple[FileSystem, str]:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        filesystem, root = FileSystem.from_uri(url)
    except pa.ArrowInvalid as error:
        raise NotAStore(without_secret(url), f"pyarrow has no file system for it: {error}") from None
    return filesystem, root.rstrip("/")
