"""`config/election.seen.json`: what a member has seen of its group, to notice an engine that has lost something.

An engine that is restored from a copy may have the group's last epoch and an older in-sync set. So the version of the
record is kept here, and the last confirm offset: a member never cuts its log below that, whoever is the master.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from reput_broker.store.errors import StoreDamaged
from reput_broker.store.file_io import make_directories, replace_file


class _Seen(msgspec.Struct, rename="camel", frozen=True):
    epoch: int = 0
    version: int = 0
    confirm_epoch: int = 0
    confirm_offset: int = 0


class SeenFile:
    """What one member has seen. Reading and saving block for as long as the sync of a small file takes.

    Raises:
        StoreDamaged: the file is damaged.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saving = threading.Lock()
        try:
            self._seen = msgspec.json.decode(path.read_bytes(), type=_Seen)
        except FileNotFoundError:
            self._seen = _Seen()
        except msgspec.MsgspecError as error:
            remedy = "remove it, if the engine that elects has not been restored from a copy"
            raise StoreDamaged(path, 0, f"it does not say what was seen: {error}", remedy) from None
        self._saved = self._seen

    @property
    def record(self) -> tuple[int, int]:
        """Epoch and version of the last record seen."""
        return self._seen.epoch, self._seen.version

    @property
    def confirmed(self) -> tuple[int, int]:
        """An epoch, and the log offset before which its master has confirmed all; zeros if none is known."""
        return self._seen.confirm_epoch, self._seen.confirm_offset

    def note_record(self, epoch: int, version: int) -> bool:
        """Note a record; tell whether it is later than those before. `save` keeps it."""
        if (epoch, version) <= self.record:
            return False
        self._seen = msgspec.structs.replace(self._seen, epoch=epoch, version=version)
        return True

    def note_confirmed(self, epoch: int, offset: int) -> None:
        """Note that all before a log offset is confirmed. The next `save` keeps it."""
        if (epoch, offset) > self.confirmed:
            self._seen = msgspec.structs.replace(self._seen, confirm_epoch=epoch, confirm_offset=offset)

    def save(self) -> None:
        """Write what has changed, durably. Raises DiskFull, FlushFailed, OSError."""
        with self._saving:
            seen = self._seen
            if seen != self._saved:
                make_directories(self._path.parent)
                replace_file(self._path, msgspec.json.encode(seen))
                self._saved = seen
