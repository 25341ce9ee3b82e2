"""The name service's key-value settings by namespace, in `kvConfig.json` (RocketMQ: KVConfigManager)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from reput_broker.tables.config_file import ConfigTable

_TABLE = "configTable"


class KVConfigManager(ConfigTable):
    """The settings. One owner; only a save job's `write` runs in another thread.

    Args:
        path: `.../kvConfig.json`; not read yet.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file. Blocks.

        Raises:
            ConfigFileDamaged: neither the file nor its backup can be used; nothing was changed.
            OSError: a file cannot be read.
        """
        table = self.file.load().members.get(_TABLE)
        for namespace, entries in (table if isinstance(table, dict) else {}).items():
            if isinstance(entries, dict):
                self._table[namespace] = {key: str(value) for key, value in entries.items()}

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return all values of a namespace by key, or None if there never was one."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Not in the file before the next save."""
        self._table.setdefault(namespace, {})[key] = value
        self._unsaved = True

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value if there is one. In the file until the next save."""
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self._unsaved = True

    @override
    def _snapshot(self) -> Callable[[], dict[str, Any]]:
        table = {namespace: dict(entries) for namespace, entries in self._table.items()}
        return lambda: {_TABLE: table}
