"""How groups consume topics, PULL or POP, in `messageRequestMode.json` (RocketMQ: MessageRequestModeManager)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import override

from reput_broker.remoting.request import Refusal
from reput_broker.tables.config_file import ConfigTable
from reput_protocol.commands.base import read_members
from reput_protocol.commands.pop import MessageRequestMode
from reput_protocol.errors import BodyMalformed, ErrorCode

_TABLE = "messageRequestModeMap"
_MODES_MAX = 20_000
"""Neither group nor topic need exist, so that their limits do not bound the table."""


class MessageRequestModes(ConfigTable):
    """The modes by topic and group. One owner; only a save job's `write` runs in another thread.

    Args:
        path: `.../messageRequestMode.json`; not read yet.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._table: dict[tuple[str, str], MessageRequestMode] = {}
        self.changes = 0
        """How often the table has changed since it was read."""

    def load(self) -> None:
        """Read the file. Blocks.

        Raises:
            ConfigFileDamaged: neither the file nor its backup can be used; nothing was changed.
            OSError: a file cannot be read.
        """
        table = self.file.load().members.get(_TABLE)
        for topic, groups in (table if isinstance(table, dict) else {}).items():
            for group, found in (groups if isinstance(groups, dict) else {}).items():
                try:
                    members = {**found, "topic": topic, "consumerGroup": group}
                    self._table[topic, group] = read_members(MessageRequestMode, members)
                except (BodyMalformed, TypeError):
                    continue

    def get(self, topic: str, group: str) -> MessageRequestMode | None:
        """Return the mode that was set; None if none was."""
        return self._table.get((topic, group))

    def put(self, mode: MessageRequestMode) -> None:
        """Set a mode. Not in the file before the next save.

        Raises:
            Refusal: QUOTA; there are too many.
        """
        if (mode.topic, mode.consumer_group) not in self._table and len(self._table) >= _MODES_MAX:
            raise Refusal(
                ErrorCode.QUOTA,
                f"{_MODES_MAX} modes are set, which is the most; delete groups or topics that are not used",
            )
        self._table[mode.topic, mode.consumer_group] = mode
        self._changed()

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove the modes of a deleted topic or group. In the file until the next save."""
        for key in [key for key in self._table if topic == key[0] or group == key[1]]:
            del self._table[key]
            self._changed()

    def members(self) -> dict[str, Any]:
        """Return the members of the file as of now."""
        topics: dict[str, dict[str, Any]] = {}
        for (topic, group), mode in self._table.items():
            topics.setdefault(topic, {})[group] = mode.to_members()
        return {_TABLE: topics}

    @override
    def _snapshot(self) -> Callable[[], dict[str, Any]]:
        members = self.members()
        return lambda: members

    def _changed(self) -> None:
        self.changes += 1
        self._unsaved = True
