"""Limit the number of mapped files: the least recently opened are closed until they are used again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from reput_broker.store.base.file_io import is_out_of_descriptors


class Restable(Protocol):
    """A file that can be closed and reopens itself when it is used."""

    def rest(self) -> bool:
        """Close it until it is used again; False if it is in use, or not on disk. Waits for no lock."""


class OpenMappings:
    """The open mapped files of a log or an index, in the order in which they were opened. Thread-safe.

    Files that cannot be closed, such as the one that is written, stay open beyond `open_max`.
    """

    def __init__(self, open_max: int) -> None:
        self.reads_ahead: Callable[[], bool] = lambda: True
        """Whether the system is to read ahead of reads for which it goes to the disk; asked before such a read."""
        self._open_max = open_max
        self._files: deque[Restable] = deque()
        self._lock = threading.Lock()

    def opened(self, file: Restable) -> None:
        """Note that a file is open, and close the least recently opened ones if there are too many."""
        with self._lock:
            self._files.append(file)
            for _ in range(len(self._files) - 1):
                if len(self._files) <= self._open_max:
                    return
                self._let_oldest_rest()

    def open_again(self, open_file: Callable[[], None]) -> None:
        """Call `open_file`; if no descriptor is free for it, close other files first.

        Raises:
            OSError: as `open_file`.
        """
        for _ in range(len(self._files)):
            try:
                open_file()
                return
            except OSError as error:
                if not is_out_of_descriptors(error):
                    raise
            with self._lock:
                self._let_oldest_rest()
        open_file()

    def _let_oldest_rest(self) -> None:
        oldest = self._files.popleft() if self._files else None
        if oldest is not None and not oldest.rest():
            self._files.append(oldest)
