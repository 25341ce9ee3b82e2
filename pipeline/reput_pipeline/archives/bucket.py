"""An archive in a bucket: objects are whole once they are there, and a new one is created once.

Nothing is renamed, and no job is locked out. The object store's conditional requests make plans and manifests
exclusive: of two jobs that write a batch, one fails. A plan that is there is executed by any job, and gives the same
objects.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import IO, Any, Final, ParamSpec, TypeVar
from urllib.parse import urlsplit

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import ObjectStore, from_url

from reput_client.arrow.urls import without_secret
from reput_client.errors import BucketRefused, BucketUnavailable
from reput_client.transport.backoff import Backoff
from reput_pipeline.archives.layout import file_prefix, partition_name, prefix_and_start
from reput_pipeline.archives.manifests import DESCRIPTION, METADATA, Archive, ArchiveKind, description
from reput_pipeline.spark.errors import ArchiveInUse, NotAnArchive

P = ParamSpec("P")
T = TypeVar("T")
_IN_MEMORY_BYTES: Final = 256 << 10
"""Of each file that is open, of which there may be a thousand; the rest is on the disk."""
_ATTEMPTS: Final = 5
_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 5.0
_REMEDIES: Final = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --to-option AWS_ACCESS_KEY_ID=... and so on, to a user "
    "who may read, write, list and delete in the bucket, and AWS_ENDPOINT_URL if it is not at Amazon",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or --to-option GOOGLE_SERVICE_ACCOUNT=FILE, to an account that may "
    "read, write, list and delete in the bucket",
}
_OTHER_REMEDY: Final = "check the credentials, which --to-option gives as for Delta tables"


class BucketArchive(Archive):
    """An archive below a URL.

    Args:
        url: of the archive, such as `s3://bucket/archive`.
        settings: of the object store, as the storage options of Delta tables.

    Raises:
        NotAnArchive: the URL or a setting is not valid.
        BucketUnavailable, BucketRefused: the object store is away, or rejects a request. All methods raise them.
    """

    is_locked = False

    def __init__(self, url: str, settings: Mapping[str, str]) -> None:
        self.where = without_secret(url).rstrip("/")
        try:
            config: Any = dict(settings)
            self._store: ObjectStore = from_url(url.rstrip("/"), config=config)
        except UnknownConfigurationKeyError as error:
            raise NotAnArchive(f"--to-option: {_first_line(error)}") from None
        except GenericError as error:
            raise NotAnArchive(f"{self.where}: {_first_line(error)}") from None

    def read(self, name: str) -> bytes:
        """Return an object of the metadata."""
        return bytes(self._asked(lambda: self._store.get(_metadata(name)).bytes()))

    def write(self, name: str, data: bytes, *, new: bool) -> None:
        """Write an object of the metadata."""
        if not new:
            self._asked(self._store.put, _metadata(name), data)
        elif not self._created(name, data) and self.read(name) != data:
            raise FileExistsError(name)

    def _created(self, name: str, data: bytes) -> bool:
        """Create an object of the metadata; return False if it exists, perhaps by a request whose response was lost."""
        try:
            self._asked(self._store.put, _metadata(name), data, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove an object of the metadata, if it exists."""
        with suppress(FileNotFoundError):
            self._asked(self._store.delete, _metadata(name))

    def metadata_names(self) -> list[str]:
        """Return the names of the metadata's objects."""
        return [path.rpartition("/")[2] for path in self._paths(METADATA)]

    def check_new(self) -> None:
        """Check that nothing else is below the URL.

        Raises:
            NotAnArchive: there is.
        """
        if any(not path.startswith(f"{METADATA}/") for path in self._paths(None)):
            raise NotAnArchive(
                f"{self.where} is neither empty nor an archive; name a place below which there is nothing"
            )

    def begin(self, kind: ArchiveKind) -> None:
        """Write the description.

        Raises:
            ArchiveInUse: another job has written it meanwhile.
            NotAnArchive: the object store has no conditional requests, without which two jobs may write a batch.
        """
        try:
            self.write(DESCRIPTION, description(kind), new=self.kind() is None)
        except FileExistsError:
            raise ArchiveInUse(self.where, DESCRIPTION) from None
        if self._created(DESCRIPTION, self.read(DESCRIPTION)):
            raise NotAnArchive(
                f"{self.where}: the object store overwrites an object that was to be created only if it is new, so "
                "two jobs could write messages twice; use --format iceberg with a REST catalog, or a directory"
            )

    def new_file(self, path: PurePosixPath) -> NewObject:
        """Return a data file to write; it is in a temporary file until it is published."""

        def put(content: IO[bytes]) -> None:
            content.seek(0)
            self._store.put(str(path), content)

        return NewObject(lambda content: self._asked(put, content))

    def sync(self, paths: Sequence[PurePosixPath]) -> None:
        """Do nothing: an object is durable once it is there."""

    def remove_strays(self) -> list[str]:
        """Remove data files of batches that have a manifest, but not of these; and the plans of these batches.

        The next batch of any job starts at the ends of the last manifest, and has no file of messages before them.
        """
        for name in self.old_plans():
            self.remove(name)
        ends = {(partition_name("topic", queue.topic), file_prefix(queue)): end for queue, end in self.ends().items()}
        known = {file.path for file in self.files()}
        strays = []
        for path in self._paths(None):
            topic, _, rest = path.partition("/")
            found = prefix_and_start(rest.rpartition("/")[2])
            if found is not None and path not in known and found[1] < ends.get((topic, found[0]), 0):
                strays.append(path)
        for path in strays:
            with suppress(FileNotFoundError):
                self._asked(self._store.delete, path)
        return strays

    def _paths(self, below: str | None) -> list[str]:
        """Return the paths of all objects below one, in order."""
        try:
            pages = self._asked(lambda: list(self._store.list(below)))
        except FileNotFoundError as error:
            raise BucketRefused(self.where, _first_line(error), "create the bucket, or name another") from None
        return sorted(str(found["path"]) for page in pages for found in page)

    def _asked(self, ask: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Make a request, again after an error: of a connection that breaks, the library repeats only some."""
        pauses = Backoff(_PAUSE_FIRST_S, _PAUSE_MAX_S)
        for left in reversed(range(_ATTEMPTS)):
            try:
                return ask(*arguments, **named)
            except AlreadyExistsError as error:
                raise FileExistsError(_first_line(error)) from None
            except (PermissionDeniedError, UnauthenticatedError) as error:
                remedy = _REMEDIES.get(urlsplit(self.where).scheme, _OTHER_REMEDY)
                raise BucketRefused(self.where, _first_line(error), remedy) from None
            except BaseError as error:
                if not left:
                    raise BucketUnavailable(self.where, _first_line(error)) from None
            time.sleep(pauses.next_delay_s())
        raise AssertionError("the last attempt returns or raises")


class NewObject:
    """A data file in a temporary file, which the operating system removes with the process."""

    def __init__(self, put: Callable[[IO[bytes]], Any]) -> None:
        self._put = put
        self.content: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 (closed later)

    def publish(self) -> int:
        """Write the object, of which there is nothing before it is whole; return its size."""
        size = self.content.seek(0, os.SEEK_END)
        self._put(self.content)
        self.content.close()
        return size

    def discard(self) -> None:
        """Remove the temporary file."""
        self.content.close()


def _metadata(name: str) -> str:
    return f"{METADATA}/{name}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
