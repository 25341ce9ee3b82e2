"""`config/election.json`: which member of which group a store directory is, and the last epoch that it saw.

The engine knows members by number only. A broker whose disk was replaced has no such file, so it does not take itself
for the member that is in sync under its number. And an engine whose record is older than this file has lost
something.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from reput_broker.ha.election.seen_file import SeenFile
from reput_broker.store.file_io import make_directories, sync_directory, write_all
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
