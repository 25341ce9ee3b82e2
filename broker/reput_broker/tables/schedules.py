"""The schedules, in `schedules.json`, which is Reput's alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import structlog
from msgspec import Struct
from typing_extensions import override

from reput_broker.remoting.request import Refusal
from reput_broker.tables.config_file import ConfigTable
from reput_protocol.commands.base import read_members
from reput_protocol.commands.schedule import ScheduleDefinition
from reput_protocol.errors import BodyMalformed, ErrorCode

log = structlog.get_logger(__name__)

_TABLE: Final = "scheduleTable"
_SCHEDULES_MAX: Final = 1000
_BYTES_MAX: Final = 4 << 20
"""Of all definitions: the whole file is written at each change, and sent to slaves."""
_FIGURES: Final = ("createdMs", "sinceMs", "lastMs")


class Schedule(Struct, frozen=True):
    """A schedule.

    Attributes:
        created_ms: when it was created or replaced; the beginning of an interval.
        since_ms: it sends for no time before: when it was created, replaced or resumed.
        last_ms: the last time for which a message was sent, when the table was saved; 0 if there was none. The log may
            have later ones.
    """

    definition: ScheduleDefinition
    created_ms: int
    since_ms: int
    last_ms: int = 0
    is_paused: bool = False

    def members(self) -> dict[str, Any]:
        """Return the members of its entry in the file."""
        definition = self.definition.to_members()
        for name in ("name", "replaces"):
            del definition[name]
        figures = zip(_FIGURES, (self.created_ms, self.since_ms, self.last_ms), strict=True)
        return {**definition, **dict(figures), "isPaused": self.is_paused}


class Schedules(ConfigTable):
    """The schedules by name. One owner; only a save job's `write` runs in another thread.

    Args:
        path: `.../schedules.json`; not read yet.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._table: dict[str, Schedule] = {}
        self._unread: dict[str, Any] = {}
        """Entries that are not valid, which stay in the file."""
        self._bytes = 0
        self.changes = 0
        """How often the table has changed since it was read."""

    def load(self) -> None:
        """Read the file; entries that are not valid have no effect, and stay in it. Blocks.

        Raises:
            ConfigFileDamaged: neither the file nor its backup can be used; nothing was changed.
            OSError: a file cannot be read.
        """
        table = self.file.load().members.get(_TABLE)
        for name, members in (table if isinstance(table, dict) else {}).items():
            try:
                definition = read_members(ScheduleDefinition, {**members, "name": name})
                created_ms, since_ms, last_ms = (int(members[figure]) for figure in _FIGURES)
            except (BodyMalformed, KeyError, TypeError, ValueError) as error:
                self._unread[name] = members
                log.error(
                    "schedule_not_understood",
                    schedule=name,
                    detail=f"its entry in {self.file.path} is not valid: {error}",
                    hint="replace it; until then it stays in the file, and sends nothing",
                )
                continue
            is_paused = members.get("isPaused") is True
            self._table[name] = Schedule(definition, created_ms, since_ms, last_ms, is_paused)
            self._bytes += len(definition.to_json())

    @property
    def all(self) -> Mapping[str, Schedule]:
        """The schedules by name."""
        return MappingProxyType(self._table)

    def check_room(self, definition: ScheduleDefinition) -> None:
        """Check that a schedule can be created or replaced.

        Raises:
            Refusal: QUOTA; there are too many.
        """
        if definition.name not in self._table and len(self._table) >= _SCHEDULES_MAX:
            raise Refusal(
                ErrorCode.QUOTA, f"{_SCHEDULES_MAX} schedules exist, which is the most; delete some of them"
            )
        total = self._bytes_with(definition)
        if total > _BYTES_MAX:
            raise Refusal(
                ErrorCode.QUOTA,
                f"with it all schedules have {total} bytes, and at most {_BYTES_MAX} are kept; shorten the body",
            )

    def _bytes_with(self, definition: ScheduleDefinition) -> int:
        before = self._table.get(definition.name)
        replaced = 0 if before is None else len(before.definition.to_json())
        return self._bytes - replaced + len(definition.to_json())

    def put(self, schedule: Schedule) -> None:
        """Create, replace or change a schedule, for which there is room. Not in the file before the next save."""
        name = schedule.definition.name
        self._bytes = self._bytes_with(schedule.definition)
        self._table[name] = schedule
        self._unread.pop(name, None)
        self._changed()

    def delete(self, name: str) -> None:
        """Delete a schedule. In the file until the next save."""
        self._bytes -= len(self._table.pop(name).definition.to_json())
        self._changed()

    def members(self) -> dict[str, Any]:
        """Return the members of the file as of now."""
        table = {name: schedule.members() for name, schedule in self._table.items()}
        return {_TABLE: {**self._unread, **table}}

    @override
    def _snapshot(self) -> Callable[[], dict[str, Any]]:
        members = self.members()
        return lambda: members

    def _changed(self) -> None:
        self.changes += 1
        self._unsaved = True
