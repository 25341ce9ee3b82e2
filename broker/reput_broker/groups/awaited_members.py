"""Members of groups that a new master knows from the one before, until they have connected to it.

Each member computes its queues from the list of members. A list with only those that have come already would give them
the queues of the others, which still consume them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from reput_broker.tables.config_file import ConfigFile
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

AwaitedGroups = Mapping[str, Mapping[str, float]]
"""By group and client id: how long the member is awaited, in seconds."""


class AwaitedMembers:
    """The client ids that are awaited, by group."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def expect(self, groups: AwaitedGroups, now: float) -> None:
        """Await these members from now on."""
        for group, members in groups.items():
            self._groups[group] = {client_id: now + wait_s for client_id, wait_s in members.items()}

    def of(self, group: str) -> list[str]:
        """Return the client ids that a group still awaits."""
        return list(self._groups.get(group, ()))

    def came(self, group: str, client_id: str) -> None:
        """Note that a member has come."""
        self._groups.get(group, {}).pop(client_id, None)

    def forget_group(self, group: str) -> None:
        """Await no member of a group."""
        self._groups.pop(group, None)

    def expired(self, now: float) -> list[str]:
        """Stop to await those whose time is over; return their groups."""
        before = {group: len(members) for group, members in self._groups.items()}
        left = {
            group: {client_id: until for client_id, until in members.items() if until > now}
            for group, members in self._groups.items()
        }
        self._groups = {group: members for group, members in left.items() if members}
        return [group for group, count in before.items() if len(left[group]) < count]


class _Members(msgspec.Struct):
    members: dict[str, dict[str, float]] = {}


class GroupMembersFile:
    """`config/groupMembers.json`: the members that the groups had at the master before. Its methods block.

    The time of the file is when that master last said so.
    """

    def __init__(self, directory: Path, clock_ms: Callable[[], int]) -> None:
        self._file = ConfigFile(directory / "groupMembers.json")
        self._clock_ms = clock_ms

    def save(self, data: bytes) -> None:
        """Replace the file's text with what the master says. Raises OSError."""
        self._file.save(data)
        self.unchanged()

    def unchanged(self) -> None:
        """Note that the master still says so."""
        now_ns = self._clock_ms() * 1_000_000
        with suppress(OSError):
            os.utime(self._file.path, ns=(now_ns, now_ns))

    def take(self, age_max_s: float) -> AwaitedGroups:
        """Return the members that a new master awaits, and remove the file: it is true only now.

        Args:
            age_max_s: members that were noted longer ago are not awaited.
        """
        try:
            loaded = self._file.load()
            if loaded.path is None:
                return {}
            age_s = self._clock_ms() / 1000 - loaded.path.stat().st_mtime
            self._file.remove()
            found = msgspec.json.decode(loaded.data, type=_Members).members
        except (ReputError, OSError, msgspec.MsgspecError) as error:
            log.warning(
                "members_not_read",
                detail=str(error),
                hint="two members may consume a queue until all are back",
            )
            return {}
        return found if age_s <= age_max_s else {}
