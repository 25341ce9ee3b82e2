"""Check the files of a store directory against each other. Changes nothing.

The log is authoritative. It is read once; on the way every record is checked, and every queue unit and index entry
against its record. The checkpoint and the tables follow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reput_broker.store.base.dispatch import DeletedTopics
from reput_broker.store.base.errors import ForeignFile
from reput_broker.store.base.options import DELAY_LEVELS_MS
from reput_broker.store.opening.directory_swap import SWAPPED
from reput_broker.store.opening.foreign_files import LMQ_PREFIX
from reput_broker.tables.offset_journal import JournalUnreadable, read_journal
from reput_broker.tools.report import FAULTS_KEPT, Progress, Report, no_progress
from reput_broker.tools.tables import (
    JOURNALS,
    OffsetKey,
    TableFile,
    apply_journal,
    find_journal,
    offsets_in,
    read_table,
    table_in_force,
    topics_in_force,
)
from reput_broker.tools.verify_checkpoint import LogFacts, index_time, valid_mark, verify_checkpoint
from reput_broker.tools.verify_index import IndexCheck
from reput_broker.tools.verify_log import LogCheck
from reput_broker.tools.verify_queues import QueuesCheck
from reput_protocol.printable import counted
from reput_protocol.store.files import standing_for
from reput_protocol.store.layout import Geometry, OddFile, StoreLayout
from reput_protocol.store.topic_journal import TOPIC_JOURNAL, read_topic_journal

_OTHER_TABLES = (
    "subscriptionGroup.json",
    "delayOffset.json",
    "consumerFilter.json",
    "consumerOrderInfo.json",
    "messageRequestMode.json",
    "schedules.json",
    "topicQueueMapping.json",
    "lmqConsumerOffset.json",
)
_COUNT_MEMBERS = ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag")
_CHAR = re.compile(r"\(char (\d+)\)")


class Verification:
    """One verification of one directory, which the caller has locked.

    Args:
        commit_log_dirs: directories of the log, if not `commitlog`.
        geometry: known sizes; the others are read from the files.
        delay_levels_ms: those of the broker that wrote it; None: RocketMQ's are assumed.
        faults_kept: how many faults of a kind are kept in full.
        progress: receives how many bytes of the log are done.
    """

    def __init__(
        self,
        root: Path,
        *,
        commit_log_dirs: Sequence[Path] = (),
        geometry: Geometry | None = None,
        delay_levels_ms: Sequence[int] | None = None,
        faults_kept: int = FAULTS_KEPT,
        progress: Progress = no_progress,
    ) -> None:
        self.root = root
        self.layout = StoreLayout(root, commit_log_dirs, geometry)
        self.report = Report(faults_kept)
        self.stopped = not self.layout.abort.exists()
        """Whether the last broker stopped in order."""
        self.mark = valid_mark(root)
        self.log = LogCheck(self.layout, self.mark, self.stopped, self.report)
        """The log and its findings."""
        self.queue_ends: dict[tuple[str, int], int] = {}
        self.renumbered: dict[int, int] = {}
        """Log offset to right queue offset of records whose QUEUEOFFSET contradicts their unit."""
        self.delay_levels_ms = DELAY_LEVELS_MS if delay_levels_ms is None else tuple(delay_levels_ms)
        self.delay_levels_given = delay_levels_ms is not None
        self.other_delays: Path | None = None
        """A queue of delayed messages most of which are due at other times than these levels say."""
        self._progress = progress
        self._topics: dict[str, dict[str, Any]] | None = None
        self.queues: QueuesCheck
        """Set by `begin`."""
        self.index: IndexCheck
        """Set by `begin`."""

    def run(self) -> Report:
        """Check everything."""
        self.begin()
        self.index.verify_files()
        self.walk()
        return self.conclude()

    def begin(self) -> None:
        """Read the files and tables that the walk needs."""
        report, layout, log = self.report, self.layout, self.log
        if not self.stopped:
            report.note(f"{layout.abort} is there: the last broker did not stop in order, the next start recovers")
        for name in SWAPPED:
            if (old := standing_for(self.root / name)) != self.root / name:
                report.note(f"a rebuild was killed: the next start renames {old} back to {name}")
        self._verify_files()
        topics = read_topics(layout.config_dir, report)
        deleted = read_deleted_topics(self.root, report)
        other_form = self._topics_of_another_form(topics or {})
        self._topics = topics
        certain = None if self.stopped else (self.mark.queues_offset if self.mark is not None else 0)
        known = None if topics is None else set(topics)
        self.queues = QueuesCheck(layout, deleted, known, other_form, certain)
        whole_until_ms = None if self.stopped else index_time(self.root)
        self.index = IndexCheck(layout, deleted, log.damages, report, whole_until_ms)
        if not layout.index_files():
            report.note("there is no key index")

    def walk(self, from_index: int = 0, to_index: int | None = None) -> None:
        """Check the files of the log, or some of them: in order, each once."""
        self.log.walk(self.queues, self.index, self.delay_levels_ms, self._progress, from_index, to_index)

    def conclude(self) -> Report:
        """Check what requires the complete walk, and return all findings."""
        report, layout, log = self.report, self.layout, self.log
        queues, index, topics = self.queues, self.index, self._topics
        log.conclude()
        self._progress(layout.log.total_bytes, layout.log.total_bytes)
        queues.finish(report, log.damages, log.kept_end)
        index.finish(stopped=self.stopped, log_has_damage=bool(log.damages))
        facts = LogFacts(log.end_offset, report.figures["records"], log.max_store_timestamp_ms, bool(log.damages))
        verify_checkpoint(self.root, facts, report)
        self.other_delays = queues.other_delays()
        self.queue_ends = queues.ends()
        self.renumbered = queues.renumbered()
        if topics is not None:
            verify_topics(layout.config_dir, topics, self.queue_ends, self.stopped, report)
        verify_offsets(layout.config_dir, self.queue_ends, self.stopped, report)
        verify_other_tables(layout.config_dir, report)
        return report

    # -- files ---------------------------------------------------------------------------------------------

    def _verify_files(self) -> None:
        for odd in (*self.layout.log.odd, *(odd for queue in self.layout.queues for odd in queue.stream.odd)):
            if not self._was_being_made(odd):
                self.report.fault("file", *odd)
        ends = bool(self.mark and self.mark.flushed_offset) or any(queue.stream.files for queue in self.layout.queues)
        if not self.layout.log.files and ends:
            self.report.fault(
                "file", self.layout.log.directories[0], 0, "there is no log, but queues or a checkpoint of one"
            )

    def _was_being_made(self, odd: OddFile) -> bool:
        """Whether a start would remove the file: the last one, too short, never written to."""
        files = self.layout.log.files
        if self.stopped or not files or odd.path != files[-1].path or len(files) < 2:
            return False
        with odd.path.open("rb") as file:
            if any(file.read(1 << 20).strip(b"\0") for _ in range(1 + files[-1].size // (1 << 20))):
                return False
        self.report.note(f"{odd.path} was being created when the broker ended: the next start removes it")
        return True

    def _topics_of_another_form(self, topics: Mapping[str, Mapping[str, Any]]) -> set[str]:
        batch = self.root / "batchconsumequeue"
        found = {path.name for path in batch.iterdir() if path.is_dir()} if batch.is_dir() else set()
        for name, entry in topics.items():
            attributes = entry.get("attributes")
            if isinstance(attributes, dict) and attributes.get("queue.type") == "BatchCQ":
                found.add(name)
        for name in sorted(found):
            self.report.note(f"the batch queues of topic {name} are not verified")
        multi = sorted({queue.topic for queue in self.layout.queues if queue.topic.startswith(LMQ_PREFIX)})
        for name in multi:
            self.report.note(f"the multi-dispatch queues of {name} are not verified")
        for path in ("timerlog", "compaction", "consumequeue_r", "rocksdb"):
            if (self.root / path).is_dir():
                self.report.note(f"{path}/ is not verified")
        return found

    @property
    def is_out_of_order(self) -> bool:
        """Whether queue offsets in the log are not consecutive: queues rebuilt from it would differ."""
        return bool(self.report.kinds["order"])


def read_deleted_topics(root: Path, report: Report) -> DeletedTopics:
    """Read `deletedTopics`; without marks if it cannot be read."""
    deleted = DeletedTopics(root / "deletedTopics")
    try:
        deleted.load()
    except ForeignFile as error:
        report.fault("topics", error.path, 0, error.reason)
    return deleted


def read_topics(config_dir: Path, report: Report) -> dict[str, dict[str, Any]] | None:
    """Check `topics.json`; return its topics, None if there is none or it cannot be used."""
    path = config_dir / "topics.json"
    if _decodes(path, "topics", report) is None:
        return None
    _verify_topic_journal(config_dir, report)
    table = topics_in_force(config_dir)
    topics = table.members.get("topicConfigTable")
    if not isinstance(topics, dict):
        report.fault("topics", table.path, 0, "it has no topicConfigTable")
        return None
    for name, entry in topics.items():
        position = max(table.data.find(f'"{name}"'.encode()), 0)
        if not isinstance(entry, dict):
            report.fault("topics", table.path, position, f"the entry of topic {name} is not an object")
            continue
        if entry.get("topicName", name) != name:
            report.fault(
                "topics", table.path, position, f"the entry of topic {name} has topicName {entry['topicName']}"
            )
        for member in _COUNT_MEMBERS:
            value = entry.get(member, 0)
            if type(value) is not int or value < 0:
                report.fault("topics", table.path, position, f"{member} of topic {name} is {value!r}")
    return {name: entry for name, entry in topics.items() if isinstance(entry, dict)}


def _verify_topic_journal(config_dir: Path, report: Report) -> None:
    path = config_dir / TOPIC_JOURNAL
    try:
        contents = read_topic_journal(path.read_bytes())
    except FileNotFoundError:
        return
    data = table_in_force(config_dir / "topics.json").data
    if contents.damaged_at is not None:
        report.fault("journal", path, contents.damaged_at, "a line there is damaged, valid ones follow")
    elif not contents.continues_file(data) and not contents.is_superseded_by(data):
        report.note(f"{path} continues another topics.json: the next start renames it")


def verify_topics(
    config_dir: Path,
    topics: Mapping[str, Mapping[str, Any]],
    queues: Mapping[tuple[str, int], int],
    stopped: bool,
    report: Report,
) -> None:
    """Check that every queue with messages belongs to a topic that lists it.

    Args:
        stopped: whether the last broker stopped in order. Otherwise it may have been deleting a topic, whose entry
            is removed first.
    """
    path = topics_in_force(config_dir).path
    highest: dict[str, int] = {}
    for (topic, queue_id), end in queues.items():
        if end:
            highest[topic] = max(highest.get(topic, 0), queue_id)
    for topic, queue_id in sorted(highest.items()):
        entry = topics.get(topic)
        if entry is None:
            what = f"topic {topic} has queues with messages and no entry"
            if stopped:
                report.fault("topics", path, 0, what)
            else:
                report.note(f"{what}: the next start creates it")
            continue
        counts = [entry.get(member, 16) for member in ("readQueueNums", "writeQueueNums")]
        if all(type(count) is int and 0 < count <= queue_id for count in counts):
            report.note(f"topic {topic} has {counted(max(counts), 'queue')}, but queue {queue_id} holds messages")


def verify_offsets(config_dir: Path, queues: Mapping[tuple[str, int], int], stopped: bool, report: Report) -> None:
    """Check `consumerOffset.json` and its journal, also against the ends of the queues.

    Args:
        queues: end of every queue by topic and queue id. Offsets of other queues are not checked,
            because their topic may have been deleted.
        stopped: whether the last broker stopped in order.
    """
    path = config_dir / "consumerOffset.json"
    if _decodes(path, "offsets", report) is None:
        _verify_journal(config_dir, TableFile(path), {}, stopped, report)
        return
    table = table_in_force(path)
    if not isinstance(table.members.get("offsetTable", {}), dict):
        report.fault("offsets", table.path, 0, "its offsetTable is not an object")
        return
    for name, entry in table.members.get("offsetTable", {}).items():
        position = max(table.data.find(f'"{name}"'.encode()), 0)
        if "@" not in name:
            report.fault("offsets", table.path, position, f"the key {name!r} does not name a topic and a group")
        elif not isinstance(entry, dict) or not all(str(queue).isdecimal() for queue in entry):
            report.fault("offsets", table.path, position, f"the entry of {name} does not map queues to offsets")
    offsets = offsets_in(table.members)
    for key, offset in offsets.items():
        _verify_offset(table.path, _position_of(table.data, key), key, offset, queues, "offsets", report)
    in_json = dict(offsets)
    journal = _verify_journal(config_dir, table, offsets, stopped, report)
    if journal is not None:
        for key, offset in offsets.items():
            if in_json.get(key) != offset:
                _verify_offset(journal, 0, key, offset, queues, "journal", report)
    report.figures["offsets"] += len(offsets)


def _verify_offset(
    path: Path,
    position: int,
    key: OffsetKey,
    offset: Any,
    queues: Mapping[tuple[str, int], int],
    kind: str,
    report: Report,
) -> None:
    group, topic, queue_id = key
    where = f"group {group} in {topic}/{queue_id}"
    if type(offset) is not int:
        report.fault(kind, path, position, f"the offset of {where} is {offset!r}")
    elif (end := queues.get((topic, queue_id))) is not None and offset > end:
        # No damage: a client may commit any offset, and a power failure may take back consumed
        # messages.
        report.note(
            f"the offset of {where} is {offset}, but the queue ends at {end}: the group continues at the end, or set "
            "its offset with `reput group reset`"
        )


def _position_of(data: bytes, key: OffsetKey) -> int:
    """Approximate position of a key's offset in the JSON text."""
    group, topic, queue_id = key
    start = max(data.find(f'"{topic}@{group}"'.encode()), 0)
    match = re.compile(rb'[{,\s]"?%d"?\s*:\s*' % queue_id).search(data, start)
    return match.end() if match else start


def _verify_journal(
    config_dir: Path, table: TableFile, offsets: dict[OffsetKey, Any], stopped: bool, report: Report
) -> Path | None:
    """Apply the journal to the offsets; return its path if it belongs to the table."""
    present = config_dir / "consumerOffset.journal"
    for name in JOURNALS:
        try:
            read_journal(config_dir / name)
        except FileNotFoundError:
            pass
        except JournalUnreadable as error:
            report.fault("journal", config_dir / name, 0, str(error))
            return None
    found = find_journal(config_dir, table)
    if found is None and table.exists:
        found = find_journal(config_dir, read_table(config_dir / "consumerOffset.json.bak"))
    if found is None:
        if present.exists() and _same_but_for_bits(present, table):
            report.fault("offsets", table.path, 0, f"its checksum is not the one that {present.name} gives for it")
        elif present.exists():
            report.note(f"{present} continues another consumerOffset.json: the next start renames it")
        return None
    path, contents = found
    if contents.damaged_at is not None:
        report.fault("journal", path, contents.damaged_at, "a record there is damaged, valid ones follow")
    elif contents.torn_bytes and stopped:
        report.fault("journal", path, contents.end, f"{contents.torn_bytes} bytes at its end are not a record")
    elif contents.torn_bytes:
        report.note(f"{path} ends with {contents.torn_bytes} bytes of an unfinished commit")
    apply_journal(offsets, contents)
    return path


def _same_but_for_bits(journal: Path, table: TableFile) -> bool:
    identity = read_journal(journal).identity
    version = table.members.get("dataVersion")
    counter = version.get("counter") if isinstance(version, dict) else None
    return table.exists and identity.size == len(table.data) and identity.counter == counter


def verify_other_tables(config_dir: Path, report: Report) -> None:
    """Check that tables which only RocketMQ uses can be decoded."""
    for name in _OTHER_TABLES:
        _decodes(config_dir / name, "file", report)


def _decodes(path: Path, kind: str, report: Report) -> TableFile | None:
    """Return what a start could use, or None; report a table that cannot be decoded."""
    table = read_table(path)
    if table.error is not None:
        report.fault(kind, path, _error_position(table), f"it is not a JSON table: {table.error}")
    in_force = table_in_force(path)
    return in_force if in_force.exists and in_force.error is None else None


def _error_position(table: TableFile) -> int:
    if isinstance(table.error, UnicodeDecodeError):
        return table.error.start
    match = _CHAR.search(str(table.error))
    return min(int(match[1]), len(table.data)) if match else 0
