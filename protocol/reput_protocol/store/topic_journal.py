"""The journal of a large table of topics: the changes since `config/topics.json` was last written.

Each line of `config/topics.journal` is the CRC-32 of a JSON object, as 8 hexadecimal digits, a space, and the object:

    first line  {"continues": [SIZE, CRC]}                  the bytes of the topics.json that the journal continues
    a change    {"version": DATAVERSION, "topics": {NAME: ENTRY or null}}
                                                            entries as in that file; null for a deleted topic
    a save      {"next": [SIZE, CRC]}                       a topics.json with all lines before is being written

With another topics.json than these two, its changes are not applied: another program has written that file.
An incomplete line at the end is what a kill leaves; it was never acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from reput_protocol.kernel.records import crc32

TOPIC_JOURNAL = "topics.journal"
TABLE = "topicConfigTable"
_CRC_DIGITS = 8


class FileIdentity(NamedTuple):
    """A topics.json, by its bytes."""

    size: int
    crc: int

    @classmethod
    def of(cls, data: bytes) -> FileIdentity:
        """Return the identity of the file with these bytes; no bytes stand for no file."""
        return cls(len(data), crc32(data))


class TopicChange(NamedTuple):
    """The topics that changed at once."""

    version: dict[str, Any]
    topics: dict[str, dict[str, Any] | None]


class TopicJournalContents(NamedTuple):
    """The content of a journal."""

    continues: FileIdentity | None
    """None if the first line is not complete: no change was acknowledged."""
    changes: list[TopicChange]
    nexts: set[FileIdentity]
    end: int
    """Where the last good line ends."""
    damaged_at: int | None
    """The position of the first bad line that has good ones after it; `changes` has those too."""

    def continues_file(self, data: bytes) -> bool:
        """Tell whether the changes are to be applied to a topics.json with these bytes."""
        return self.continues == FileIdentity.of(data)

    def is_superseded_by(self, data: bytes) -> bool:
        """Tell whether a topics.json with these bytes has all the changes."""
        return self.continues is None or FileIdentity.of(data) in self.nexts

    def applied(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of topics.json with the changes; `members` stay as they are."""
        if not self.changes:
            return dict(members)
        before = members.get(TABLE)
        table = dict(before) if isinstance(before, dict) else {}
        for change in self.changes:
            for name, entry in change.topics.items():
                if entry is None:
                    table.pop(name, None)
                else:
                    table[name] = entry
        return {**members, "dataVersion": self.changes[-1].version, TABLE: table}


def head_line(continues: FileIdentity) -> bytes:
    """Return the first line of a journal."""
    return _line({"continues": continues})


def change_line(change: TopicChange) -> bytes:
    """Return the line of a change."""
    return _line({"version": change.version, "topics": change.topics})


def next_line(identity: FileIdentity) -> bytes:
    """Return the line before a save."""
    return _line({"next": identity})


def read_topic_journal(data: bytes) -> TopicJournalContents:
    """Return the content of a journal of these bytes; any bytes are a journal, of damaged lines if need be."""
    continues: FileIdentity | None = None
    changes: list[TopicChange] = []
    nexts: set[FileIdentity] = set()
    position = end = 0
    bad_at: int | None = None
    damaged_at: int | None = None
    while (stop := data.find(b"\n", position) + 1) > 0:
        line = _decoded(data[position : stop - 1])
        if line is None:
            bad_at = position if bad_at is None else bad_at
        else:
            damaged_at = bad_at if damaged_at is None else damaged_at
            end = stop
            if "continues" in line and position == 0:
                continues = FileIdentity(*line["continues"])
            elif "next" in line:
                nexts.add(FileIdentity(*line["next"]))
            elif "topics" in line:
                changes.append(TopicChange(line["version"], line["topics"]))
        position = stop
    return TopicJournalContents(continues, changes, nexts, end, damaged_at)


def with_journal(members: Mapping[str, Any], data: bytes, journal: bytes | None) -> dict[str, Any]:
    """Return the members of a topics.json with the changes of its journal, if that belongs to it.

    Args:
        data: the bytes of the file; none if there is no file.
        journal: those of the journal; None if there is none.
    """
    if journal is None:
        return dict(members)
    contents = read_topic_journal(journal)
    return contents.applied(members) if contents.continues_file(data) else dict(members)


def _line(members: Mapping[str, Any]) -> bytes:
    text = msgspec.json.encode(members)
    return b"%08x %b\n" % (crc32(text), text)


def _decoded(line: bytes) -> dict[str, Any] | None:
    text = line[_CRC_DIGITS + 1 :]
    if line[: _CRC_DIGITS + 1] != b"%08x " % crc32(text):
        return None
    members: dict[str, Any] = msgspec.json.decode(text)
    return members
