"""`config/election.json`: which member of which group a store directory is, and the last epoch that it saw.

The engine knows members by number only. A broker whose disk was replaced has no such file, so it does not take itself
for the member that is in sync under its number. And an engine whose record is older than this file has lost
something.

`config/election.seen.json` is what it has seen of its group: an engine that is restored from a copy may have the
group's last epoch and an older in-sync set. So the version of the record is kept there, and the last confirm offset: a
member never cuts its log below that, whichever member is the master. So are the addresses of the other members, which a
member asks before it campaigns.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.base.file_io import make_directories, replace_file, sync_directory, write_all
from reput_protocol.errors import ReputError


class MemberFileWrong(ReputError):
    """The file is damaged, or is another member's. Nothing was changed."""


class MemberFile:
    """The identity of one member. Reading and writing blocks for as long as the sync of a small file takes.

    Args:
        path: the file; its directory is made when it is written.

    Raises:
        MemberFileWrong: the file is damaged, or the directory is that of another member.
        StoreDamaged: the file of what was seen is damaged.
        OSError: a file cannot be read.
    """

    def __init__(self, path: Path, *, cluster: str, broker_name: str, member: int) -> None:
        self._path = path
        self._identity = {"cluster": cluster, "brokerName": broker_name, "brokerId": member}
        self.epoch: int | None = None
        """The largest epoch seen; None if this directory has not been part of a group yet."""
        self.seen = SeenFile(path.with_suffix(".seen.json"))
        try:
            text = path.read_text()
        except FileNotFoundError:
            return
        try:
            found = json.loads(text)
            self.epoch = int(found.pop("epoch"))
        except (ValueError, KeyError, AttributeError, TypeError):
            raise MemberFileWrong(
                f"{path} is damaged; if this directory has the log of member {member} of {cluster}/{broker_name}, "
                "remove the file and let the member join the group again as a slave"
            ) from None
        if found != self._identity:
            raise MemberFileWrong(
                f"{path} says that this directory is that of {found}, but the configuration says {self._identity}; "
                "correct broker_id, broker_name and cluster, or use another data_dir"
            )

    @property
    def seen_record(self) -> tuple[int, int]:
        """Epoch and version of the last record that this member has seen or begun."""
        return max((self.epoch or 0, 0), self.seen.record)

    def note(self, epoch: int) -> None:
        """Keep the epoch if it is the largest so far, durably. Raises OSError."""
        if self.epoch is not None and epoch <= self.epoch:
            return
        make_directories(self._path.parent)
        temporary = self._path.with_name(self._path.name + ".tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, json.dumps({**self._identity, "epoch": epoch}).encode(), 0, temporary)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, self._path)
        sync_directory(self._path.parent)
        self.epoch = epoch


class _Seen(msgspec.Struct, rename="camel", frozen=True):
    epoch: int = 0
    version: int = 0
    confirm_epoch: int = 0
    confirm_offset: int = 0
    members: dict[int, str] = {}


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

    @property
    def members(self) -> Mapping[int, str]:
        """The last known addresses of the other members, by the id under which they are announced as slaves."""
        return self._seen.members

    def note_members(self, addresses: Mapping[int, str]) -> None:
        """Note where the other members are, if any are known. The next `save` keeps it."""
        if addresses:
            self._seen = msgspec.structs.replace(self._seen, members=dict(addresses))

    def save(self) -> None:
        """Write what has changed, durably. Raises DiskFull, FlushFailed, OSError."""
        with self._saving:
            seen = self._seen
            if seen != self._saved:
                make_directories(self._path.parent)
                replace_file(self._path, msgspec.json.encode(seen))
                self._saved = seen
