"""The offsets of consumer groups (RocketMQ: ConsumerOffsetManager).

The table is saved to `config/consumerOffset.json` at intervals, in RocketMQ's format. Between two saves every commit is
written to `config/consumerOffset.journal` before it is acknowledged, so it survives `kill -9`.

`OffsetSave` replaces both files; a crash at any step is safe. A journal names the JSON file that it continues, so the
start finds the pair. If it continues neither the file nor its backup, another broker has written the JSON: the journal
is renamed, named in the log, and not applied.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from typing_extensions import override

from reput_broker.store.base.file_io import make_directories, set_aside
from reput_broker.tables.config_file import ConfigFile, DataVersion, SavedTable, SaveJob, encode
from reput_broker.tables.offset_journal import (
    COMMIT,
    GROUP_REMOVED,
    TOPIC_REMOVED,
    JournalContents,
    JournalEntry,
    JournalIdentity,
    JournalUnreadable,
    JournalWriteFailed,
    OffsetJournal,
    read_journal,
)
from reput_broker.tables.table_saver import save_now
from reput_protocol.names import POP_PASSED_GROUP, REVIVE_GROUP, TRANS_OP_HALF_TOPIC, TRANSACTION_CHECK_GROUP

log = structlog.get_logger(__name__)

_VERSION_STEP = 500
"""Commits per step of the data version (RocketMQ: consumerOffsetUpdateVersionStep)."""


_NO_CONSUMERS = (REVIVE_GROUP, POP_PASSED_GROUP)
"""The broker's own progress through check points, which is not the next offset of a queue."""


class Commit(NamedTuple):
    """An offset of a queue: the next one to consume."""

    topic: str
    queue_id: int
    offset: int


class OffsetChanges(NamedTuple):
    """Offsets of a version, for a slave."""

    version: str
    is_partial: bool
    """Whether only what has changed is there; otherwise it is the whole table."""
    offsets: dict[tuple[str, str], dict[int, int]]
    """By group and topic: queue id -> offset."""


class ConsumerOffsetManager(SavedTable):
    """The committed offsets of all groups. One owner; only a save job's `write` and
    `sync_journal` run in another thread.

    Invariant: every offset in the table is in the journal or in the JSON file.

    Args:
        path: `.../config/consumerOffset.json`; not read yet.

    Attributes:
        damaged: how many places of the journal were damaged when it was loaded.
    """

    def __init__(self, path: Path, *, clock_ms: Callable[[], int], journal_size_max: int = 8 << 20) -> None:
        self.file = ConfigFile(path)
        self.journal_path = path.with_name("consumerOffset.journal")
        self.journal_size_max = journal_size_max
        self.damaged = 0
        self.next_journal_path = path.with_name("consumerOffset.journal.next")
        self._clock_ms = clock_ms
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self._version = DataVersion()
        self._commits = 0
        self._era = secrets.token_hex(4)
        self._changes = 0
        self._changed_at: dict[tuple[str, str], int] = {}  # the number of its last change in this era
        self._unknown_members: dict[str, Any] = {}
        self._unknown_entries: dict[str, Any] = {}
        self._journal: OffsetJournal | None = None
        self._unsaved = False
        self._job: OffsetSave | None = None

    # Loading and closing

    def load(self) -> None:
        """Read the JSON file and its journal; afterwards commits are accepted. Blocks.

        Raises:
            ConfigFileDamaged: the JSON file and its backup are unreadable; nothing was changed.
            OSError: a file cannot be read, or no journal can be created.
        """
        loaded = self.file.load()
        self._read_members(loaded.members)
        identity = JournalIdentity.of(loaded.data, self._version.counter)
        contents = self._find_journal(identity)
        if contents is None:
            journal = OffsetJournal.create(self._make_directory(), identity, next_sequence=1)
            journal.rename(self.journal_path)
            self._journal = journal
            return
        for entry in contents.entries:
            self._apply(entry)
        self.damaged = contents.damaged
        self._unsaved = bool(contents.entries) or contents.damaged_at is not None
        if contents.damaged_at is not None:
            self._keep_damaged_journal(contents.damaged_at)
            # The place in the op queue relies on the place in the half queue, which may be lost: without the op
            # messages before it, transactions that have ended would be open again. The op queue is read from its start.
            self._table.pop((TRANSACTION_CHECK_GROUP, TRANS_OP_HALF_TOPIC), None)
        elif contents.torn_bytes:
            log.info("offset_journal_torn_record_dropped", path=str(self.journal_path), size_bytes=contents.torn_bytes)
        self._journal = OffsetJournal(self.journal_path, contents.next_sequence, contents.end)
        if contents.damaged_at is not None:
            save_now(self)  # which starts a new journal: in the damaged one, later records would be reported again

    def close(self) -> None:
        """Close the journal; every acknowledged commit is in it or in the JSON file. Idempotent."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    # Reading

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset (the next one to consume), or None if there is none."""
        queues = self._table.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def for_topic(self, topic: str) -> dict[str, dict[int, int]]:
        """Return the offsets in `topic`: group -> queue id -> offset, of the groups of `items`."""
        return {group: dict(queues) for group, name, queues in self.items() if name == topic}

    def for_group(self, group: str) -> dict[str, dict[int, int]]:
        """Return the offsets of `group`: topic -> queue id -> offset."""
        return {topic: dict(queues) for (name, topic), queues in self._table.items() if name == group}

    def groups(self) -> set[str]:
        """Return every group that has an offset, as `items`."""
        return {group for group, _ in self._table if group not in _NO_CONSUMERS}

    def items(self) -> Iterator[tuple[str, str, Mapping[int, int]]]:
        """Iterate over (group, topic, queue id -> offset); commits made meanwhile may or may not appear.

        Without the broker's own progress through check points.
        """
        for (group, topic), queues in list(self._table.items()):
            if group not in _NO_CONSUMERS:
                yield group, topic, queues

    @property
    def version(self) -> DataVersion:
        """How often the table changed, and when it last did; RocketMQ's step is 500 commits."""
        return self._version

    @property
    def changes_version(self) -> str:
        """The version that `changes_since` would return now."""
        return f"{self._era}.{self._changes}"

    def changes_since(self, version: str | None) -> OffsetChanges:
        """Return the offsets that have changed since `version`, of an earlier call; all if it is not known.

        A removal begins another era: then all are returned.
        """
        era, _, number = (version or "").partition(".")
        now = self.changes_version
        if era == self._era and number.isdecimal():
            since = int(number)
            places = [place for place, change in self._changed_at.items() if change > since]
            return OffsetChanges(now, True, {place: dict(self._table[place]) for place in places})
        return OffsetChanges(now, False, {place: dict(queues) for place, queues in self._table.items()})

    # Writing

    def adopt(
        self, offsets: Mapping[tuple[str, str], Mapping[int, int]], *, is_partial: bool, version: DataVersion
    ) -> None:
        """Set the offsets of a master, by group and topic; without `is_partial`, remove all others.

        Raises:
            JournalWriteFailed: nothing was changed.
        """
        entries: list[JournalEntry] = []
        stale = set() if is_partial else {group for group, topic in self._table if (group, topic) not in offsets}
        entries += [JournalEntry(GROUP_REMOVED, group, "", 0, 0) for group in sorted(stale)]
        for (group, topic), queues in offsets.items():
            entries += [
                JournalEntry(COMMIT, group, topic, queue_id, offset)
                for queue_id, offset in queues.items()
                if offset >= 0 and (group in stale or self.query(group, topic, queue_id) != offset)
            ]
        if entries:
            self._record(entries)
        self._version = version

    def limit(self, end_of: Callable[[str, int], int]) -> None:
        """Limit every offset of a queue to its end, after the log was truncated.

        Args:
            end_of: returns the end of a queue, of topic and queue id.
        """
        beyond = [
            JournalEntry(COMMIT, group, topic, queue_id, end_of(topic, queue_id))
            for (group, topic), queues in self._table.items()
            for queue_id, offset in queues.items()
            if group != POP_PASSED_GROUP and offset > end_of(topic, queue_id)
        ]
        if beyond:
            self._record(beyond)

    def commit(self, group: str, topic: str, queue_id: int, offset: int, *, increase_only: bool = False) -> None:
        """Set a group's offset in a queue; it survives `kill -9` once this returns.

        A smaller offset is a legal rewind, unless `increase_only`: then it is ignored. Negative ones are always
        ignored: RocketMQ's clients send -1 for a queue from which they took nothing.

        Raises:
            JournalWriteFailed: it is not committed; the table is unchanged.
        """
        if offset < 0:
            return
        known = self.query(group, topic, queue_id)
        if known is not None and (offset == known or (increase_only and offset < known)):
            return
        self._record((JournalEntry(COMMIT, group, topic, queue_id, offset),))

    def commit_many(self, group: str, commits: Iterable[Commit]) -> None:
        """Set several offsets of a group with one write; see `commit`. All or none are set."""
        entries = [
            JournalEntry(COMMIT, group, topic, queue_id, offset)
            for topic, queue_id, offset in commits
            if offset >= 0 and self.query(group, topic, queue_id) != offset
        ]
        if entries:
            self._record(entries)

    def remove_topic(self, topic: str) -> None:
        """Remove every group's offsets in `topic`. Raises JournalWriteFailed: nothing was removed."""
        if any(name == topic for _, name in self._table):
            self._record((JournalEntry(TOPIC_REMOVED, "", topic, 0, 0),))

    def remove_group(self, group: str) -> None:
        """Remove the offsets of `group`. Raises JournalWriteFailed: nothing was removed."""
        if any(name == group for name, _ in self._table):
            self._record((JournalEntry(GROUP_REMOVED, group, "", 0, 0),))

    # Saving

    @property
    def journal_size_b(self) -> int:
        """Bytes in the journal."""
        return 0 if self._journal is None else self._journal.size_b

    @property
    def save_due(self) -> bool:
        """Whether the journal has grown so large that the JSON file should be written now."""
        return self.journal_size_b >= self.journal_size_max and self._job is None

    def sync_journal(self) -> None:
        """Have all commits survive a crash of the machine. Blocks: for a worker thread; no save may run.

        Raises:
            JournalWriteFailed: they may not. The next save replaces the journal.
        """
        assert self._journal is not None, "the table is not loaded"
        try:
            self._journal.sync()
        except JournalWriteFailed:
            self._unsaved = True
            raise

    @override
    def begin_save(self) -> OffsetSave | None:
        assert self._job is None, "a save is running already"
        if not self._unsaved or self._journal is None:
            return None
        if self._journal.path != self.journal_path:
            # The last step of the previous save failed. The next save writes to that name, so free it.
            self._journal.rename(self.journal_path)
        self._unsaved = False
        self._job = OffsetSave(self, self._snapshot(), self._journal.next_sequence)
        return self._job

    def adopt_journal(self, journal: OffsetJournal) -> None:
        """Continue with another journal, which has everything that the JSON file does not; ends the running save."""
        self.close()
        self._journal = journal
        self._job = None

    def save_abandoned(self) -> None:
        """End the running save without effect: the old files stay valid."""
        self._unsaved = True
        self._job = None

    # Internals

    def _record(self, entries: Sequence[JournalEntry]) -> None:
        assert self._journal is not None, "the table is not loaded"
        records = self._journal.append(entries)
        if self._job is not None:
            self._job.remember(records, len(entries))
        for entry in entries:
            self._apply(entry)
        self._unsaved = True
        self._commits += len(entries)
        if self._commits >= _VERSION_STEP:
            self._commits -= _VERSION_STEP
            self._version = self._version.next(self._clock_ms())

    def _apply(self, entry: JournalEntry) -> None:
        if entry.kind == COMMIT:
            place = entry.group, entry.topic
            self._table.setdefault(place, {})[entry.queue_id] = entry.offset
            self._changes += 1
            self._changed_at[place] = self._changes
            return
        self._era = secrets.token_hex(4)
        self._changed_at.clear()
        for key in [
            (group, topic)
            for group, topic in self._table
            if (entry.kind == TOPIC_REMOVED and topic == entry.topic)
            or (entry.kind == GROUP_REMOVED and group == entry.group)
        ]:
            del self._table[key]

    def _read_members(self, members: dict[str, Any]) -> None:
        self._version = DataVersion.from_json(members.get("dataVersion"))
        offset_table = members.get("offsetTable") or {}
        for name, queues in offset_table.items():
            topic, separator, group = name.partition("@")
            if separator and "@" not in group and _is_queue_map(queues):
                # RocketMQ keeps the -1 that a client commits for a queue from which it took nothing.
                self._table[group, topic] = {
                    int(queue_id): offset for queue_id, offset in queues.items() if offset >= 0
                }
            else:
                self._unknown_entries[name] = queues
        known = ("dataVersion", "groupTopicMap", "offsetTable")
        self._unknown_members = {name: value for name, value in members.items() if name not in known}

    def _snapshot(self) -> Callable[[], dict[str, Any]]:
        """Return a function that builds the file's members as of now, in any thread."""
        table = {place: queues.copy() for place, queues in self._table.items()}
        version = self._version

        def members() -> dict[str, Any]:
            groups: dict[str, list[str]] = {}
            offset_table: dict[str, Any] = dict(self._unknown_entries)
            for (group, topic), queues in table.items():
                groups.setdefault(group, []).append(topic)
                offset_table[f"{topic}@{group}"] = queues
            return {
                **self._unknown_members,
                "dataVersion": version.to_json(),
                "groupTopicMap": groups,
                "offsetTable": offset_table,
            }

        return members

    def _find_journal(self, identity: JournalIdentity) -> JournalContents | None:
        """Return the journal that continues the JSON file, under its own name; rename others."""
        current, unfinished = _read_if_any(self.journal_path), _read_if_any(self.next_journal_path)
        if isinstance(current, JournalContents) and current.identity == identity:
            if unfinished is not None:
                self.next_journal_path.unlink()  # of a save that did not reach step 5
            return current
        if isinstance(unfinished, JournalContents) and unfinished.identity == identity:
            # A save ended between steps 5 and 6: the new JSON has all commits of the old journal.
            os.replace(self.next_journal_path, self.journal_path)
            return unfinished
        for path, found in ((self.journal_path, current), (self.next_journal_path, unfinished)):
            if found is not None:
                aside = set_aside(path, "foreign" if isinstance(found, JournalContents) else "unreadable")
                log.warning(
                    "offset_journal_set_aside",
                    path=str(path),
                    kept_as=str(aside),
                    entries=len(found.entries) if isinstance(found, JournalContents) else None,
                    hint=f"{self.file.path.name} is not the file that it continues: another broker wrote that, "
                    "or it was replaced; the offsets in the file count",
                )
        return None

    def _keep_damaged_journal(self, position: int) -> None:
        aside = self.journal_path.with_name(f"{self.journal_path.name}.damaged-{self._clock_ms()}")
        shutil.copyfile(self.journal_path, aside)
        log.error(
            "offset_journal_damaged",
            path=str(self.journal_path),
            position=position,
            kept_as=str(aside),
            hint="the good records before and after were applied; a group may see messages again",
        )

    def _make_directory(self) -> Path:
        make_directories(self.next_journal_path.parent)
        return self.next_journal_path


def _is_queue_map(queues: object) -> bool:
    return isinstance(queues, dict) and all(
        queue_id.removeprefix("-").isdigit() and isinstance(offset, int) and not isinstance(offset, bool)
        for queue_id, offset in queues.items()
    )


def _read_if_any(path: Path) -> JournalContents | JournalUnreadable | None:
    try:
        return read_journal(path)
    except FileNotFoundError:
        return None
    except JournalUnreadable as error:
        return error


@dataclass(eq=False, repr=False)
class OffsetSave(SaveJob):
    """One save of the offsets: `consumerOffset.json` and its journal are replaced together.

    A crash after each step is safe:

    1. the new JSON is written to consumerOffset.json.tmp and synced          old JSON + old journal are valid
    2. an empty journal that continues it is written to
       consumerOffset.journal.next and synced                                 (commits meanwhile go to the old
    3. the commits since the copy was made are appended to that one            journal, and are remembered)
    4. consumerOffset.json becomes .bak                                       .bak + old journal are valid
    5. consumerOffset.json.tmp becomes consumerOffset.json                    new JSON + journal.next are valid
    6. consumerOffset.journal.next becomes consumerOffset.journal             new JSON + new journal are valid
    """

    _table: ConsumerOffsetManager
    _members: Callable[[], dict[str, Any]]
    _next_sequence: int
    _records: list[bytes] = field(default_factory=list, init=False)
    _count: int = field(default=0, init=False)
    _journal: OffsetJournal | None = field(default=None, init=False)

    def remember(self, records: bytes, count: int) -> None:
        """Remember commits made while the job runs."""
        self._records.append(records)
        self._count += count

    def write(self) -> None:
        """Steps 1 and 2; see `SaveJob`."""
        members = self._members()
        data = encode(members)
        self._table.file.write_temporary(data)
        identity = JournalIdentity.of(data, members["dataVersion"]["counter"])
        self._journal = OffsetJournal.create(self._table.next_journal_path, identity, self._next_sequence)

    def adopt(self) -> None:
        """Steps 3 to 6, for the owner of the table.

        Raises:
            JournalWriteFailed, OSError: the old files stay valid if step 5 was not reached, otherwise the new ones are
                valid, whatever the name of the journal.
        """
        journal = self._journal
        assert journal is not None, "write comes first"
        if self._records:
            journal.append_records(b"".join(self._records), self._count)
        self._table.file.adopt_temporary()
        self._journal = None
        self._table.adopt_journal(journal)
        journal.rename(self._table.journal_path)

    @override
    def sync(self) -> None:
        self._table.file.sync_directory()

    def abandon(self) -> None:
        """Give up; remove the files of this save that are not used."""
        table = self._table
        if self._journal is not None:
            self._journal.close()
            with suppress(OSError):
                self._journal.path.unlink()
        with suppress(OSError):
            table.file.temporary.unlink(missing_ok=True)
        table.save_abandoned()
