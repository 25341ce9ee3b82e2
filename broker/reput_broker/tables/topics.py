"""The topics of this broker (RocketMQ: TopicConfigManager), kept in `config/topics.json`.

A topic is created by an administrator or, with `topics.auto_create`, by the first send to it, from the template TBW102,
which exists only then and which RocketMQ's clients look up too. Unknown members of the file, from a newer RocketMQ, are
kept and written back. The generation of a topic is one of its attributes, because RocketMQ keeps those that it does not
know.

A small table is written whole whenever it changes. Of a large one only the changes are, to `config/topics.journal`,
until these are as long as the file: creating a topic costs the same however many there are.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio
from msgspec.structs import replace
from typing_extensions import override

from reput_broker.config.sections import TopicsConfig
from reput_broker.remoting.request import Refusal
from reput_broker.store.base.file_io import set_aside, sync_data, sync_names
from reput_broker.store.opening.foreign_files import LMQ_PREFIX
from reput_broker.tables.config_file import ConfigFile, ConfigFileSave, DataVersion, EntryTexts, SavedTable, SaveJob
from reput_broker.tables.table_saver import save_now
from reput_protocol import names
from reput_protocol.commands.topic import EXPIRING_ATTRIBUTE, GENERATION_ATTRIBUTE, TopicConfig
from reput_protocol.errors import ErrorCode, ReputError
from reput_protocol.store.topic_journal import (
    TABLE,
    TOPIC_JOURNAL,
    FileIdentity,
    TopicChange,
    TopicJournalContents,
    change_line,
    head_line,
    next_line,
    read_topic_journal,
)

log = structlog.get_logger(__name__)

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
PERM_DEFAULT = PERM_READ | PERM_WRITE


class TooManyTopics(ReputError):
    """The limit of automatically created topics is reached; the topic was not created."""

    def __init__(self, topic: str, limit: int) -> None:
        super().__init__(
            f"topic {topic!r} does not exist and is not created, because there are {limit} topics or more "
            "(topics.auto_create_max); create it first, delete topics that are not used, or raise that limit"
        )


_NONE: Mapping[str, Any] = {}
_TEMPLATE_QUEUES = 8
_GENERATION_BYTES = 8
_DEFAULT_QUEUES = 16
"""Queues of a topic whose file entry or request names no number (RocketMQ: TopicConfig)."""
_SMALL_BYTES = 64 << 10
"""Up to this size, some 240 topics, the file is written whole at each change."""


class TopicConfigManager(SavedTable):
    """The table of topics. One owner; only a save job's `write` runs in another thread.

    Args:
        path: `.../config/topics.json`; not read yet.
        options: live.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock_ms: Callable[[], int],
        cluster: str = "DefaultCluster",
        broker_name: str = "broker-a",
        options: TopicsConfig | None = None,
    ) -> None:
        self.file = ConfigFile(path)
        self._options = TopicsConfig() if options is None else options
        self._clock_ms = clock_ms
        self._names = (cluster, broker_name)
        self._topics: dict[str, TopicConfig] = {}
        self._user_topics = 0
        self._unknown_of: dict[str, dict[str, Any]] = {}
        self._unknown_members: dict[str, Any] = {}
        self._version = DataVersion()
        self._is_unsaved = False
        self._unsaved: dict[str, None] = {}
        self._needs_whole = True
        self.file_identity = FileIdentity.of(b"")
        """The file on disk."""
        self.journal = TopicJournal(path.with_name(TOPIC_JOURNAL))
        self._texts = EntryTexts(TABLE)
        self._read_ms = 0
        self._deleted: set[str] = set()
        self._leaving: dict[str, trio.Event] = {}
        """Topics that have left the table, while what is kept of them has not been dropped yet."""
        self.expiring: set[str] = set()
        """The topics that have had messages which expire; always the same set. See `mark_expiring`."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change."""

    def load(self) -> None:
        """Read the file and add the system's topics. Blocks.

        Raises:
            ConfigFileDamaged: neither the file nor its backup can be used; nothing was changed.
            OSError: a file cannot be read.
        """
        members, data, place = self.file.load()
        self.file_identity = FileIdentity.of(data)
        journal = self.journal.load(data)
        if journal is not None:
            members = journal.applied(members)
        self._needs_whole = place != self.file.path
        self._read(members)
        known = ("dataVersion", TABLE)
        self._unknown_members = {name: value for name, value in members.items() if name not in known}
        if journal is not None and journal.damaged_at is not None:
            self._needs_whole = self._is_unsaved = True
            save_now(self)

    def _read(self, members: Mapping[str, Any]) -> None:
        self._version = DataVersion.from_json(members.get("dataVersion"))
        self._read_ms = self._version.timestamp_ms
        table = members.get(TABLE) or {}
        for name, entry in table.items():
            if isinstance(entry, dict):
                self._topics[name], self._unknown_of[name] = _read_topic(name, entry)
        for config in self._system_topics():
            self._topics.setdefault(config.topic_name, config)
        self._user_topics = sum(not self.is_system(topic) for topic in self._topics)
        self.expiring.clear()
        self.expiring.update(topic for topic, config in self._topics.items() if EXPIRING_ATTRIBUTE in config.attributes)

    def adopt(self, members: Mapping[str, Any]) -> list[str]:
        """Replace all topics by those of a master, and return the names of the others.

        Args:
            members: as in the file. In the file from the next save on.
        """
        before = self._topics
        self._topics, self._unknown_of = {}, {}
        self._read(members)
        self._needs_whole = self._is_unsaved = True
        return [topic for topic in before if topic not in self._topics]

    # Reading

    def get(self, topic: str) -> TopicConfig | None:
        """Return a topic's settings, or None if it does not exist."""
        if topic == names.DEFAULT_TOPIC and not self._options.auto_create:
            return None
        return self._topics.get(topic)

    def template(self) -> TopicConfig | None:
        """Return the settings of the bundled client's topics at first use, under the template's name; None if they are
        not created.
        """
        template = self.get(names.DEFAULT_TOPIC)
        queues = self._options.default_queues
        return None if template is None else replace(template, read_queue_nums=queues, write_queue_nums=queues)

    def all(self) -> dict[str, TopicConfig]:
        """Return every topic by its name, including the system's."""
        topics = dict(self._topics)
        if not self._options.auto_create:
            topics.pop(names.DEFAULT_TOPIC, None)
        return topics

    def is_system(self, topic: str) -> bool:
        """Tell whether a topic belongs to the system: it is not listed to users, and they cannot delete it."""
        return names.is_system_topic(topic, self._names)

    def user_topic_count(self) -> int:
        """Return the number of topics, without the system's."""
        return self._user_topics

    @property
    def version(self) -> DataVersion:
        """How often the table changed, and when it last did."""
        return self._version

    # Changing

    def create_on_send(self, topic: str, queues: int | None = None) -> TopicConfig | None:
        """Return the topic of a send, created from the template if necessary; None if automatic creation is off.

        A new topic is not in the file yet: save the table before the send is acknowledged.

        Args:
            queues: the number of queues that the sender asks for, limited by the template's; None for
                `topics.default_queues`.

        Raises:
            InvalidName: the name is not legal.
            TooManyTopics: there are already `topics.auto_create_max` topics.
        """
        existing = self._topics.get(topic)
        if existing is not None:
            return existing
        config = self.new_on_send(topic, queues)
        return None if config is None else self._created(config)

    def new_on_send(self, topic: str, queues: int | None = None) -> TopicConfig | None:
        """Return what `create_on_send` would create; raises like it."""
        names.check_topic(topic)
        template = self.get(names.DEFAULT_TOPIC)
        if self._user_topics >= self._options.auto_create_max:
            raise TooManyTopics(topic, self._options.auto_create_max)
        if template is not None and template.perm & PERM_INHERIT:
            count = self.new_topic_queues if queues is None else max(1, min(queues, template.write_queue_nums))
            return _topic(topic, count, template.perm & ~PERM_INHERIT)
        return _topic(topic, 1) if topic.startswith(names.RETRY_PREFIX) else None

    @property
    def new_topic_queues(self) -> int:
        """How many queues a topic gets that a send creates, unless the sender asks for a number."""
        return max(1, self._options.default_queues)

    def create_internal(self, topic: str, queues: int = 1) -> TopicConfig:
        """Return a retry or dead-letter topic, created if necessary; see `create_on_send`."""
        assert topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)), topic
        return self._topics.get(topic) or self._created(_topic(names.check_topic(topic), queues))

    def create_system(self, topic: str, queues: int) -> TopicConfig:
        """Return a topic of the system, created if necessary; see `create_on_send`."""
        assert names.is_system_topic(topic), topic
        return self._topics.get(topic) or self._created(_topic(topic, queues))

    def _created(self, config: TopicConfig) -> TopicConfig:
        self.put(config)
        return self._topics[config.topic_name]

    def adopt_queues(self, topic: str, queues: int) -> None:
        """Create a topic for queues that exist without one; see `create_on_send`. Raises InvalidName.

        It gets no generation: the messages are its own.
        """
        self._set(_topic(names.check_topic(topic), queues))

    def of_accepted(self, topic: str, queue_id: int, stored_ms: int) -> TopicConfig | None:
        """Return the topic of a message that waits to be put there; None if the topic was deleted.

        A slave that becomes the master may not have heard of a topic of the last second. A message that was stored
        after the last change in the table that was read is of such a topic, and creates it.
        """
        config = self._topics.get(topic)
        if config is not None or stored_ms <= self._read_ms or topic in self._deleted:
            return config
        try:
            self.adopt_queues(topic, queue_id + 1)
        except ReputError as error:
            log.warning("queue_without_topic", topic=topic, detail=str(error))
            return None
        log.warning("topic_recreated", topic=topic, queues=queue_id + 1)
        return self._topics[topic]

    def put(self, config: TopicConfig) -> None:
        """Create a topic, or change it to `config`. Not in the file before the next save.

        A new topic gets a generation, and keeps it through every change.

        Raises:
            Refusal: BUSY, a topic of this name is being deleted; see `left`.
        """
        topic = config.topic_name
        before = self._topics.get(topic)
        if before is None and topic in self._leaving:
            raise Refusal(ErrorCode.BUSY, f"topic {topic!r} is being deleted; ask again in a moment")
        attributes = {**config.attributes}
        attributes.pop(GENERATION_ATTRIBUTE, None)
        if before is None and not self.is_system(topic):
            attributes[GENERATION_ATTRIBUTE] = secrets.token_hex(_GENERATION_BYTES)
        elif before is not None and before.generation:
            attributes[GENERATION_ATTRIBUTE] = before.generation
        if topic in self.expiring:
            attributes[EXPIRING_ATTRIBUTE] = "true"
        self._set(replace(config, attributes=attributes))

    def restore(self, config: TopicConfig) -> None:
        """Create a topic as it was on another broker, generation included. One that was only adopted is replaced."""
        before = self.get(config.topic_name)
        if before is None or not before.generation:
            self._set(config)

    def mark_expiring(self, config: TopicConfig) -> None:
        """Note that a topic gets a message that expires. Not in the file before the next save."""
        self.expiring.add(config.topic_name)
        self.put(config)

    def _set(self, config: TopicConfig) -> None:
        topic = config.topic_name
        self._user_topics += topic not in self._topics and not self.is_system(topic)
        self._topics[topic] = config
        self._deleted.discard(topic)
        if EXPIRING_ATTRIBUTE in config.attributes:
            self.expiring.add(topic)
        self._changed(topic)

    def set_ordered(self, ordered: Collection[str]) -> None:
        """Mark these topics as ordered, and no others (RocketMQ: updateOrderTopicConfig). In the file after the next
        save.
        """
        for topic, config in list(self._topics.items()):
            if config.order != (topic in ordered):
                self._set(replace(config, order=not config.order))

    def delete(self, topic: str) -> bool:
        """Delete a topic; return whether it existed. In the file until the next save."""
        self._unknown_of.pop(topic, None)
        if self._topics.pop(topic, None) is None:
            return False
        self._user_topics -= not self.is_system(topic)
        self._deleted.add(topic)
        self.expiring.discard(topic)
        self._changed(topic)
        return True

    @contextmanager
    def leaving(self, topics: Collection[str]) -> Iterator[None]:
        """Let no topics of these names be created within the block, which saves the table and drops what is kept of
        them: a message sent meanwhile to a new topic would be dropped, or would come after those of the old one.
        """
        event = trio.Event()
        self._leaving.update(dict.fromkeys(topics, event))
        try:
            yield
        finally:
            for topic in topics:
                del self._leaving[topic]
            event.set()

    async def left(self, topic: str) -> None:
        """Wait until no topic of this name is being deleted."""
        while (event := self._leaving.get(topic)) is not None:
            await event.wait()

    # Saving

    @override
    def begin_save(self) -> SaveJob | None:
        if not self._is_unsaved:
            return None
        self._is_unsaved = False
        changed, self._unsaved = self._unsaved, {}
        size = self.file_identity.size
        if self._needs_whole or size <= _SMALL_BYTES or self.journal.size >= size or not self.journal.is_usable:
            needed, self._needs_whole = self._needs_whole, False
            return _WholeSave(self, self._snapshot(), partial(self._changed_again, changed, needed))
        entries = {name: self._entry(name) for name in changed}
        change = TopicChange(self._version.to_json(), entries)
        return _JournalSave(self, change, partial(self._changed_again, changed, False))

    @property
    def has_journal(self) -> bool:
        """Whether there are changes that the file does not have; RocketMQ would not find these."""
        return self.journal.size > 0

    def write_whole(self) -> None:
        """Have the next save write the file, if a journal has changes that it lacks."""
        if self.has_journal:
            self._needs_whole = self._is_unsaved = True

    def _entry(self, name: str) -> dict[str, Any] | None:
        config = self._topics.get(name)
        return None if config is None else topic_members(config, self._unknown_of.get(name, _NONE))

    def _snapshot(self) -> Callable[[], bytes]:
        """Return a function that makes the file's text as of now, in any thread: settings are replaced, never
        changed.
        """
        topics, unknown_of, version = self.all(), dict(self._unknown_of), self._version

        def text() -> bytes:
            members = {**self._unknown_members, "dataVersion": version.to_json(), TABLE: {}}
            entries = {name: (config, unknown_of.get(name, _NONE)) for name, config in topics.items()}
            return self._texts.encode(members, entries, topic_members)

        return text

    def _changed(self, topic: str) -> None:
        self._version = self._version.next(self._clock_ms())
        self._unsaved[topic] = None
        self._is_unsaved = True
        self.on_change()

    def _changed_again(self, changed: dict[str, None], needs_whole: bool) -> None:
        """Note that these topics were not saved after all."""
        self._unsaved = {**changed, **self._unsaved}
        self._is_unsaved = True
        self._needs_whole |= needs_whole

    def _system_topics(self) -> list[TopicConfig]:
        cluster, broker_name = self._names
        return [
            _topic(names.SELF_TEST_TOPIC, 1),
            _topic(names.BENCHMARK_TOPIC, 1024),
            _topic(cluster, 16, PERM_DEFAULT | PERM_INHERIT),
            _topic(broker_name, 1, PERM_DEFAULT | PERM_INHERIT),
            _topic(names.OFFSET_MOVED_EVENT, 1),
            _topic(names.TRACE_TOPIC, 1),
            _topic(names.SCHEDULE_TOPIC, 18),
            _topic(f"{cluster}_REPLY_TOPIC", 1),
            _topic(f"rmq_sys_REVIVE_LOG_{cluster}", 8),
            _topic(f"rmq_sys_SYNC_BROKER_MEMBER_{broker_name}", 1, PERM_INHERIT),
            _topic(names.TRANS_HALF_TOPIC, 1),
            _topic(names.TRANS_OP_HALF_TOPIC, 1),
            _topic(names.TIMER_TOPIC, 1),
            _topic(names.DELAY_CANCEL_TOPIC, 1),
            # Always there: a slave deletes the queues of a topic that its master does not have.
            _topic(names.SINK_TOPIC, 1, PERM_READ),
            _topic(names.STAGED_TOPIC, 1, PERM_READ),
            _topic(names.DEFAULT_TOPIC, _TEMPLATE_QUEUES, PERM_DEFAULT | PERM_INHERIT),
        ]


class _WholeSave(ConfigFileSave):
    """Writes the file; the journal then starts again."""

    def __init__(self, table: TopicConfigManager, text: Callable[[], bytes], on_abandon: Callable[[], None]) -> None:
        super().__init__(table.file, text, on_abandon)
        self._table = table
        self._identity = FileIdentity.of(b"")

    @override
    def write(self) -> None:
        data = self._text()
        self._file.write_temporary(data)
        self._identity = FileIdentity.of(data)
        self._table.journal.announce(self._identity)

    @override
    def adopt(self) -> None:
        super().adopt()
        self._table.file_identity = self._identity
        self._table.journal.is_usable = False  # it continues the file before, until it is removed

    @override
    def sync(self) -> None:
        super().sync()
        self._table.journal.remove()


@dataclass(eq=False, repr=False)
class _JournalSave(SaveJob):
    """Writes what has changed."""

    _table: TopicConfigManager
    _change: TopicChange
    _on_abandon: Callable[[], None]

    @override
    def write(self) -> None:
        self._table.journal.append(self._change, self._table.file_identity)

    @override
    def adopt(self) -> None: ...

    @override
    def sync(self) -> None: ...

    @override
    def abandon(self) -> None:
        self._on_abandon()


def topic_members(config: TopicConfig, unknown: Mapping[str, Any]) -> dict[str, Any]:
    """Return a topic as the file has it, with its unknown members."""
    members = {
        "attributes": dict(sorted(config.attributes.items())),
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queue_nums,
        "topicFilterType": config.topic_filter_type,
        "topicName": config.topic_name,
        "topicSysFlag": config.topic_sys_flag,
        "writeQueueNums": config.write_queue_nums,
    }
    return dict(sorted({**unknown, **members}.items()))


_KNOWN_MEMBERS = frozenset(topic_members(TopicConfig(topic_name="x"), {}))


def _read_topic(name: str, entry: dict[str, Any]) -> tuple[TopicConfig, dict[str, Any]]:
    attributes = entry.get("attributes")
    config = TopicConfig(
        topic_name=name,
        read_queue_nums=_number(entry, "readQueueNums", _DEFAULT_QUEUES),
        write_queue_nums=_number(entry, "writeQueueNums", _DEFAULT_QUEUES),
        perm=_number(entry, "perm", PERM_DEFAULT),
        topic_filter_type=str(entry.get("topicFilterType") or "SINGLE_TAG"),
        topic_sys_flag=_number(entry, "topicSysFlag", 0),
        order=entry.get("order") is True,
        attributes={str(key): str(value) for key, value in attributes.items()} if isinstance(attributes, dict) else {},
    )
    return config, {member: value for member, value in entry.items() if member not in _KNOWN_MEMBERS}


def _number(entry: dict[str, Any], name: str, default: int) -> int:
    value = entry.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _topic(name: str, queues: int, perm: int = PERM_DEFAULT) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def why_not_kept(topic: str, attributes: Mapping[str, str]) -> str | None:
    """Return why messages of this topic cannot be stored, with the remedy; None if they can.

    A batch queue (`queue.type=BatchCQ`) has its entries in `batchconsumequeue/`, a compacted topic
    (`cleanup.policy=COMPACTION`) has a second log, and a topic whose name begins with `%LMQ%` is a light queue with the
    messages of other topics. RocketMQ would not find what this broker stored for them, and refuses a directory in which
    a batch topic has an ordinary queue.
    """
    if "queue.type" in attributes and attributes["queue.type"].lower() == "batchcq":
        return (
            f"topic {topic!r} has attribute queue.type=BatchCQ and this broker keeps no batch queues; "
            "use a topic without it"
        )
    if "cleanup.policy" in attributes and attributes["cleanup.policy"].upper() == "COMPACTION":
        return (
            f"topic {topic!r} has attribute cleanup.policy=COMPACTION and this broker compacts nothing; "
            "use a topic without it"
        )
    if topic.startswith(LMQ_PREFIX):
        return (
            f"topic {topic!r} begins with {LMQ_PREFIX}, which names RocketMQ's light message queues, and this broker "
            "keeps none; choose another name"
        )
    return None


class TopicJournal:
    """The journal of a topics.json, in the same directory. All methods but `size` block.

    Attributes:
        size: bytes of good lines; 0 without a file.
        is_usable: whether it takes lines; not after a failure, nor while its file is replaced, until `remove`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.is_usable = True
        self._fd = -1

    def load(self, data: bytes) -> TopicJournalContents | None:
        """Read the journal; return it if it continues the topics.json with these bytes.

        One that the file supersedes is removed. One that belongs to another file, or is damaged, is set aside and
        logged; what a damaged one still says counts.

        Raises:
            OSError: it cannot be read or set aside.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        contents = read_topic_journal(content)
        if contents.continues_file(data):
            if contents.damaged_at is None:
                self.size = contents.end
                return contents
            self._set_aside("damaged", f"bad line at byte {contents.damaged_at}, with good ones after it")
            return contents
        if contents.is_superseded_by(data) and contents.damaged_at is None:
            self.path.unlink()
        else:
            self._set_aside(
                "foreign",
                "it does not continue topics.json, which another program wrote, or a save after an error of the disk",
            )
        return None

    def _set_aside(self, why: str, reason: str) -> None:
        aside = set_aside(self.path, why)
        log.error(
            "topic_journal_set_aside",
            path=str(self.path),
            reason=reason,
            kept_as=str(aside),
            hint="compare reput topic list with the topics that it names, and create those that are missing",
        )

    def append(self, change: TopicChange, continues: FileIdentity) -> None:
        """Write a change durably.

        Args:
            continues: the topics.json on disk.

        Raises:
            OSError: the change is not in the journal.
        """
        self._write(change_line(change), continues)

    def announce(self, next_file: FileIdentity) -> None:
        """Note durably that a topics.json with all changes is about to replace the present one. Raises OSError."""
        if self.size and self.is_usable:
            self._write(next_line(next_file), None)

    def _write(self, line: bytes, continues: FileIdentity | None) -> None:
        is_new = self.size == 0
        if is_new:
            assert continues is not None
            line = head_line(continues) + line
        try:
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._fd = os.open(self.path, flags, 0o644)
                os.ftruncate(self._fd, self.size)  # of a line that a kill has left
            os.fspath(self.path)  # which checks that the directory is still this broker's (opening/lock.py)
            if os.write(self._fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync_data(self._fd)
            if is_new:
                sync_names(self.path.parent)
        except OSError as error:
            # A line that is perhaps on disk: the next save writes the file whole.
            self.is_usable = False
            with suppress(OSError):
                if self._fd >= 0:
                    os.ftruncate(self._fd, self.size)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.size += len(line)

    def remove(self) -> None:
        """Remove the file, all of whose changes are in the topics.json. Raises OSError; `size` is then as before."""
        self.close()
        self.path.unlink(missing_ok=True)
        self.size, self.is_usable = 0, True

    def close(self) -> None:
        """Close the file; its lines stay. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
