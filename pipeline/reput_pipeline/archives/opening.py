"""Where an archive is: a directory, or a URL of an object store."""

from __future__ import annotations

from collections.abc import Mapping

from reput_client.arrow.urls import directory_of, is_remote
from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.manifests import Archive
from reput_pipeline.spark.errors import BucketLibraryMissing


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
