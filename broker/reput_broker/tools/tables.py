"""Read the tables under `config/`. Changes nothing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reput_broker.tables.config_file import decode
from reput_broker.tables.offset_journal import (
    COMMIT,
    TOPIC_REMOVED,
    JournalContents,
    JournalIdentity,
    JournalUnreadable,
    read_journal,
)
from reput_protocol.store.topic_journal import TOPIC_JOURNAL, with_journal

JOURNALS = ("consumerOffset.journal", "consumerOffset.journal.next")
OffsetKey = tuple[str, str, int]
"""Group, topic and queue id."""


@dataclass(slots=True)
class TableFile:
    """One JSON file."""

    path: Path
    data: bytes = b""
    members: dict[str, Any] = field(default_factory=dict)
    error: ValueError | None = None
    """Why it cannot be decoded."""

    @property
    def exists(self) -> bool:
        """Whether the file exists and is not empty."""
        return bool(self.data)


def read_table(path: Path) -> TableFile:
    """Read a file; a missing or empty one has no members."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return TableFile(path)
    table = TableFile(path, data)
    try:
        table.members = decode(data) if data else {}
    except ValueError as error:
        table.error = error
    return table


def table_in_force(path: Path) -> TableFile:
    """Return the file that a start would use: the named one, or its backup."""
    table = read_table(path)
    if table.exists and table.error is None:
        return table
    backup = read_table(path.with_name(path.name + ".bak"))
    return backup if backup.exists and backup.error is None else table


def topics_in_force(config_dir: Path) -> TableFile:
    """Return the table of topics that a start would use, with the changes of its journal."""
    journal: bytes | None = None
    with contextlib.suppress(FileNotFoundError):
        journal = (config_dir / TOPIC_JOURNAL).read_bytes()
    table = table_in_force(config_dir / "topics.json")
    table.members = with_journal(table.members, table.data, journal)
    return table


def offsets_in(members: dict[str, Any]) -> dict[OffsetKey, Any]:
    """Return the offsets of a decoded `consumerOffset.json`; the values are not checked."""
    offsets: dict[OffsetKey, Any] = {}
    table = members.get("offsetTable")
    for name, queues in table.items() if isinstance(table, dict) else ():
        topic, separator, group = name.partition("@")
        if separator and isinstance(queues, dict):
            for queue_id, offset in queues.items():
                if str(queue_id).isdecimal():
                    offsets[group, topic, int(queue_id)] = offset
    return offsets


def find_journal(config_dir: Path, table: TableFile) -> tuple[Path, JournalContents] | None:
    """Return the journal that continues a table, as a start would find it, or None."""
    version = table.members.get("dataVersion")
    counter = version.get("counter", 0) if isinstance(version, dict) else 0
    identity = JournalIdentity.of(table.data, counter if isinstance(counter, int) else 0)
    for name in JOURNALS:
        path = config_dir / name
        with contextlib.suppress(JournalUnreadable, FileNotFoundError):
            contents = read_journal(path)
            if contents.identity == identity:
                return path, contents
    return None


def apply_journal(offsets: dict[OffsetKey, Any], contents: JournalContents) -> None:
    """Apply a journal to a table of offsets."""
    for entry in contents.entries:
        if entry.kind == COMMIT:
            offsets[entry.group, entry.topic, entry.queue_id] = entry.offset
            continue
        removed_topic = entry.kind == TOPIC_REMOVED
        for key in [key for key in offsets if (key[1] == entry.topic if removed_topic else key[0] == entry.group)]:
            del offsets[key]
