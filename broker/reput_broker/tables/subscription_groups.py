"""The settings of consumer groups (RocketMQ: SubscriptionGroupManager), kept in `config/subscriptionGroup.json`.

A group is created by an administrator or, with `groups.auto_create`, by the first heartbeat or pull of a client. The
table has what a group may do; `groups/consumer_groups.py` has its members. Unknown members of the file, from a newer
RocketMQ, are kept and written back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import structlog
from msgspec import to_builtins
from typing_extensions import override

from reput_broker.config.sections import GroupsConfig
from reput_broker.remoting.request import Refusal
from reput_broker.tables.config_file import ConfigTable, DataVersion, EntryTexts
from reput_protocol.codes import Perm
from reput_protocol.commands.base import read_members
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.errors import BodyMalformed, ErrorCode
from reput_protocol.names import SYSTEM_GROUPS, check_group, is_system_group

log = structlog.get_logger(__name__)

_TABLE = "subscriptionGroupTable"
_NONE: Mapping[str, Any] = {}
_KNOWN_MEMBERS = frozenset(SubscriptionGroupConfig.__struct_encode_fields__)


class SubscriptionGroupManager(ConfigTable):
    """The table of groups. One owner; only a save job's `write` runs in another thread.

    Args:
        path: `.../config/subscriptionGroup.json`; not read yet.
        options: live.
    """

    def __init__(self, path: Path, *, clock_ms: Callable[[], int], options: GroupsConfig | None = None) -> None:
        super().__init__(path)
        self._options = GroupsConfig() if options is None else options
        self._clock_ms = clock_ms
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self._unknown_of: dict[str, dict[str, Any]] = {}
        self._unreadable: dict[str, Any] = {}
        self._unknown_members: dict[str, Any] = {}
        self._adopted: frozenset[str] | None = None
        self._version = DataVersion()
        self._texts = EntryTexts(_TABLE)
        self.has_file = False
        """Whether `load` found a file: a directory of an older Reput, or without its tables, has none."""

    def load(self) -> None:
        """Read the file and add the system's groups. Blocks.

        Raises:
            ConfigFileDamaged: neither the file nor its backup can be used; nothing was changed.
            OSError: a file cannot be read.
        """
        loaded = self.file.load()
        self.has_file = loaded.path is not None
        members = loaded.members
        self._read(members)
        known = ("dataVersion", _TABLE, "forbiddenTable")
        self._unknown_members = {name: value for name, value in members.items() if name not in known}

    def _read(self, members: Mapping[str, Any]) -> None:
        self._version = DataVersion.from_json(members.get("dataVersion"))
        table = members.get(_TABLE) or {}
        for name, entry in table.items():
            self._read_group(name, entry)
        forbidden = members.get("forbiddenTable") or {}
        for name, topics in forbidden.items():
            if isinstance(topics, dict):
                self._forbidden[name] = {topic: bits for topic, bits in topics.items() if type(bits) is int}
        for name in SYSTEM_GROUPS:
            self._groups.setdefault(name, SubscriptionGroupConfig(name))

    def adopt(self, members: Mapping[str, Any]) -> None:
        """Replace all groups by those of a master. In the file from the next save on.

        Groups that were created here since the first call stay: their members are online, and the master has not
        received them yet.

        Args:
            members: as in the file.
        """
        adopted = self._adopted
        own = {} if adopted is None else {n: config for n, config in self._groups.items() if n not in adopted}
        self._groups, self._unreadable, self._unknown_of, self._forbidden = {}, {}, {}, {}
        self._read(members)
        self._adopted = frozenset(self._groups)
        self._groups = {**own, **self._groups}
        self._unsaved = True

    def _read_group(self, name: str, entry: Any) -> None:
        try:
            if not isinstance(entry, dict):
                raise BodyMalformed("it is not an object")
            config = read_members(SubscriptionGroupConfig, {**entry, "groupName": name})
        except BodyMalformed as error:
            log.warning(
                "group_entry_unreadable",
                path=str(self.file.path),
                group=name,
                detail=str(error),
                hint="the group is unknown until the entry is repaired or the group created again; the entry is kept",
            )
            self._unreadable[name] = entry
            return
        self._groups[name] = config
        unknown = {member: value for member, value in entry.items() if member not in _KNOWN_MEMBERS}
        if unknown:
            self._unknown_of[name] = unknown

    # Reading

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings, or None if it does not exist."""
        return self._groups.get(group)

    def all(self) -> dict[str, SubscriptionGroupConfig]:
        """Return every group by its name, including the system's."""
        return dict(self._groups)

    def user_group_count(self) -> int:
        """Return the number of groups, without the system's."""
        return len(self._groups) - sum(name in self._groups for name in SYSTEM_GROUPS)

    def may_read(self, group: str, topic: str) -> bool:
        """Tell whether a group may read a topic: yes, unless an administrator has forbidden it."""
        topics = self._forbidden.get(group)
        return topics is None or not topics.get(topic, 0) & Perm.READ

    def forbidden(self) -> dict[str, dict[str, int]]:
        """Return what is forbidden: bits of `Perm` by group and topic."""
        return {group: dict(topics) for group, topics in self._forbidden.items()}

    @property
    def version(self) -> DataVersion:
        """How often the table changed, and when it last did."""
        return self._version

    # Changing

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group, created with RocketMQ's defaults if necessary; it is in the file from the next save on.

        Returns:
            None if it does not exist, and automatic creation is off or there are `groups.auto_create_max` groups.

        Raises:
            InvalidName: the name is not legal.
        """
        existing = self._groups.get(group)
        if existing is not None:
            return existing
        check_group(group)
        options = self._options
        may_create = options.auto_create or is_system_group(group)
        if not may_create or self.user_group_count() >= options.auto_create_max:
            return None
        config = SubscriptionGroupConfig(group)
        self.put(config)
        return config

    def check_room(self, groups: Iterable[str]) -> None:
        """Check that groups can be added.

        Raises:
            Refusal: QUOTA; with the new ones there would be more than `groups.groups_max`.
        """
        new = sum(group not in self._groups for group in set(groups))
        if new and self.user_group_count() + new > self._options.groups_max:
            raise Refusal(
                ErrorCode.QUOTA,
                f"there are {self.user_group_count()} groups, and with {new} more there would be more than "
                f"{self._options.groups_max} (groups.groups_max); delete some, or raise the option",
            )

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create a group, or change it to `config`. Not in the file before the next save."""
        self._unreadable.pop(config.group_name, None)
        self._groups[config.group_name] = config
        self._changed()

    def delete(self, group: str) -> bool:
        """Delete a group; return whether it existed. In the file until the next save."""
        self._unknown_of.pop(group, None)
        self._forbidden.pop(group, None)
        unreadable = self._unreadable.pop(group, None)
        if self._groups.pop(group, None) is None and unreadable is None:
            return False
        self._changed()
        return True

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Forbid a group to read a topic, or permit it again. Not in the file before the next save."""
        bits = self._forbidden.get(group, {}).get(topic, 0)
        wanted = bits & ~Perm.READ if readable else bits | Perm.READ
        if wanted == bits:
            return
        topics = self._forbidden.setdefault(group, {})
        topics[topic] = wanted
        if not wanted:
            del topics[topic]
        if not topics:
            del self._forbidden[group]
        self._changed()

    # Saving

    @override
    def _snapshot(self) -> Callable[[], bytes]:
        # Settings are replaced, never changed.
        groups: dict[str, Any] = {**self._unreadable, **self._groups}
        unknown_of, forbidden, version = dict(self._unknown_of), self.forbidden(), self._version

        def text() -> bytes:
            members = {
                **self._unknown_members,
                "dataVersion": version.to_json(),
                "forbiddenTable": forbidden,
                _TABLE: {},
            }
            entries = {name: (found, unknown_of.get(name, _NONE)) for name, found in groups.items()}
            return self._texts.encode(members, entries, _entry)

        return text

    def _changed(self) -> None:
        self._version = self._version.next(self._clock_ms())
        self._unsaved = True


def _entry(found: Any, unknown: Mapping[str, Any]) -> Any:
    """Return a group as the file has it, with its unknown members; what could not be read stays as it is."""
    if not isinstance(found, SubscriptionGroupConfig):
        return found
    return dict(sorted({**unknown, **to_builtins(found, order="sorted")}.items()))
