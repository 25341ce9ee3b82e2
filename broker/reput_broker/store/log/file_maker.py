"""Create the files of a log, each in the first of its directories that allows it.

If a disk is full, mounted read-only, unreachable or broken, the next directory is tried. A failing directory is
reported once and tried again for every file that is due there.

What is left of a file that could not be created must not remain next to the one created elsewhere. It is removed
durably, at the latest before the next file is created in that directory. Until then the next start recognises it
because it holds only zeros (`file_names.list_files_of`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from reput_broker.store.base.errors import DirectoryLost, DiskFull, FileNotMade, FlushFailed
from reput_broker.store.base.file_io import is_no_space, make_directories, sync_directory
from reput_broker.store.base.options import EventHandler
from reput_broker.store.log.mapped_file import MappedFile
from reput_protocol.store.files import file_name


class FileMaker:
    """Creates files of `file_size` bytes; one at a time, in any thread.

    Events: `commit_log_dir_failed` when a directory begins to fail for another reason than a full disk,
    `commit_log_dir_works_again` when a file has been created in it after that.
    """

    def __init__(
        self,
        file_size: int,
        on_event: EventHandler,
    ) -> None:
        self._file_size = file_size
        self._on_event = on_event
        self._failed: set[Path] = set()
        self._leftovers: set[Path] = set()

    def make(self, base_offset: int, directories: Iterable[Path]) -> MappedFile:
        """Create the file with this base offset in the first directory that allows it.

        Raises:
            DiskFull: none did, at least one of them for lack of space.
            FileNotMade: none did, or no descriptor or memory was free, which no other directory
                would change.
        """
        full: DiskFull | None = None
        failed: FileNotMade | None = None
        for directory in directories:
            path = directory / file_name(base_offset)
            try:
                make_directories(directory)
                self._sweep(directory)
                file = MappedFile(path, self._file_size, base_offset, create=True)
            except FileExistsError as error:
                refusal = FileNotMade(path, error)
                self._note_failed(directory, refusal)
                failed = failed or refusal
            except DirectoryLost as error:
                raise FileNotMade(path, error) from error
            except (DiskFull, FlushFailed, OSError) as error:
                self._note_leftover(path)
                if isinstance(error, DiskFull) or is_no_space(error):
                    full = full or DiskFull(path, self._file_size)
                    continue
                refusal = FileNotMade(path, error)
                if refusal.is_out_of_descriptors or refusal.is_out_of_memory:
                    raise refusal from error
                self._note_failed(directory, refusal)
                failed = failed or refusal
            else:
                self._note_works(directory)
                return file
        refused = full or failed
        assert refused is not None, "there is always a directory to try"
        raise refused

    def remove_leftover(self, path: Path) -> None:
        """Remove what is left of a file, now or before the next one is created in that directory."""
        self._leftovers.add(path)
        with suppress(FlushFailed, OSError):
            self._sweep(path.parent)

    def _note_leftover(self, path: Path) -> None:
        try:
            if not os.path.lexists(path):
                sync_directory(path.parent)
                return
        except FileNotFoundError:
            return  # its directory does not exist either
        except (FlushFailed, OSError):
            pass
        self._leftovers.add(path)

    def _sweep(self, directory: Path) -> None:
        """Remove leftovers from a directory; while that fails, no file is created there."""
        for path in [path for path in self._leftovers if path.parent == directory]:
            path.unlink(missing_ok=True)
            sync_directory(directory)
            self._leftovers.discard(path)

    def _note_failed(self, directory: Path, refusal: FileNotMade) -> None:
        if directory not in self._failed:
            self._failed.add(directory)
            self._on_event("commit_log_dir_failed", {"path": str(directory), "reason": str(refusal)})

    def _note_works(self, directory: Path) -> None:
        if directory in self._failed:
            self._failed.discard(directory)
            self._on_event("commit_log_dir_works_again", {"path": str(directory)})
