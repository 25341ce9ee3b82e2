"""The tables of a broker together: topics, consumer offsets, consumer groups, the name service's settings and
others, each with what saves it. The small ones are here; schedules, in `schedules.json`, are Reput's alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import structlog
import trio
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from reput_broker.config.model import BrokerConfig
from reput_broker.remoting.request import Refusal
from reput_broker.tables.config_file import ConfigTable, SavedTable
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_broker.tables.table_saver import SaveSoon, TableSaver, save_now
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol.commands.base import read_members
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.commands.pop import MessageRequestMode
from reput_protocol.commands.schedule import ScheduleDefinition
from reput_protocol.errors import BodyMalformed, ErrorCode, InvalidName, ReputError
from reput_protocol.names import retry_topic

log = structlog.get_logger(__name__)

_KV_TABLE = "configTable"
_MODES_TABLE = "messageRequestModeMap"
_MODES_MAX = 20_000
"""Neither group nor topic need exist, so that their limits do not bound the table."""
_SCHEDULES_TABLE: Final = "scheduleTable"
_SCHEDULES_MAX: Final = 1000
_SCHEDULES_BYTES_MAX: Final = 4 << 20
"""Of all definitions: the whole file is written at each change, and sent to slaves."""
_FIGURES: Final = ("createdMs", "sinceMs", "lastMs")
_RETRY_INTERVAL_S = 1.0


class KVConfigManager(ConfigTable):
    """The name service's key-value settings by namespace, in `kvConfig.json` (RocketMQ: KVConfigManager). One owner;
    only a save job's `write` runs in another thread.

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
        table = self.file.load().members.get(_KV_TABLE)
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
        return lambda: {_KV_TABLE: table}


class MessageRequestModes(ConfigTable):
    """How groups consume topics, PULL or POP, in `messageRequestMode.json` (RocketMQ: MessageRequestModeManager). One
    owner; only a save job's `write` runs in another thread.

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
        table = self.file.load().members.get(_MODES_TABLE)
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
        return {_MODES_TABLE: topics}

    @override
    def _snapshot(self) -> Callable[[], dict[str, Any]]:
        members = self.members()
        return lambda: members

    def _changed(self) -> None:
        self.changes += 1
        self._unsaved = True


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
        table = self.file.load().members.get(_SCHEDULES_TABLE)
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
            raise Refusal(ErrorCode.QUOTA, f"{_SCHEDULES_MAX} schedules exist, which is the most; delete some of them")
        total = self._bytes_with(definition)
        if total > _SCHEDULES_BYTES_MAX:
            raise Refusal(
                ErrorCode.QUOTA,
                f"with it all schedules have {total} bytes, and at most {_SCHEDULES_BYTES_MAX} are kept; "
                "shorten the body",
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
        return {_SCHEDULES_TABLE: {**self._unread, **table}}

    @override
    def _snapshot(self) -> Callable[[], dict[str, Any]]:
        members = self.members()
        return lambda: members

    def _changed(self) -> None:
        self.changes += 1
        self._unsaved = True


class LoadedTable(SavedTable, Protocol):
    """A table with a file."""

    def load(self) -> None:
        """Read the file. Blocks. Raises ConfigFileDamaged, OSError."""


class Tables:
    """All tables. One owner; `load` and `close` block and run in a worker thread.

    Args:
        directory: holds the files.
        on_saved: called with a table's name after each save, and with the error if it failed.
    """

    def __init__(
        self,
        directory: Path,
        config: BrokerConfig,
        clock_ms: Callable[[], int],
        on_saved: Callable[[str, Exception | None], None],
    ) -> None:
        self.clock_ms = clock_ms
        self._options = config.groups
        self.topics = TopicConfigManager(
            directory / "topics.json",
            clock_ms=clock_ms,
            cluster=config.cluster,
            broker_name=config.broker_name,
            options=config.topics,
        )
        self.offsets = ConsumerOffsetManager(
            directory / "consumerOffset.json", clock_ms=clock_ms, journal_size_max=config.offsets.journal_size_max
        )
        self.groups = SubscriptionGroupManager(
            directory / "subscriptionGroup.json", clock_ms=clock_ms, options=config.groups
        )
        self.kv_config = KVConfigManager(directory / "kvConfig.json")
        self.request_modes = MessageRequestModes(directory / "messageRequestMode.json")
        self.schedules = Schedules(directory / "schedules.json")
        self.topic_saver = TableSaver(self.topics, partial(on_saved, "topics"))
        self.offset_saver = TableSaver(self.offsets, partial(on_saved, "offsets"))
        self.group_saver = TableSaver(self.groups, partial(on_saved, "groups"))
        self.kv_saver = TableSaver(self.kv_config, partial(on_saved, "kvConfig"))
        self.mode_saver = TableSaver(self.request_modes, partial(on_saved, "messageRequestMode"))
        self.schedule_saver = TableSaver(self.schedules, partial(on_saved, "schedules"))
        self.topics_soon = SaveSoon(self.topic_saver, "topics")
        self.groups_soon = SaveSoon(self.group_saver, "groups")
        self._flush_interval_s: Callable[[], float] = lambda: config.offsets.flush_interval
        self.offsets_soon = OffsetSaveService(self.offsets, self.offset_saver, self._flush_interval_s)
        self._loaded: list[tuple[str, SavedTable]] = []

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the broker does."""
        return (self.offsets_soon.run, self.topics_soon.run, self.groups_soon.run, self._write_topics)

    async def _write_topics(self) -> None:
        """Write topics.json at intervals while a journal has changes of topics: RocketMQ does not read that."""
        while True:
            await trio.sleep(self._flush_interval_s())
            self.topics.write_whole()
            with suppress(ReputError, OSError):  # they are in the journal, and `on_saved` reports the failure
                await self.topic_saver.save()

    def load(self) -> None:
        """Read all tables. If there is no file of groups yet, create the groups that have offsets.

        Raises:
            ConfigFileDamaged, OSError: a table cannot be read; nothing was changed.
        """
        tables: dict[str, LoadedTable] = {
            "topics": self.topics,
            "offsets": self.offsets,
            "groups": self.groups,
            "kvConfig": self.kv_config,
            "messageRequestMode": self.request_modes,
            "schedules": self.schedules,
        }
        for name, table in tables.items():
            self.read(name, table)
        if not self.groups.has_file and self._options.auto_create:
            for group in sorted(self.offsets.groups()):
                try:
                    self.groups.find_or_create(group)
                except InvalidName as error:
                    log.warning("offsets_without_group", group=group, detail=str(error))

    def read(self, name: str, table: LoadedTable) -> None:
        """Read a table, which `close` saves. Raises as `load`."""
        table.load()
        self._loaded.append((name, table))

    def adopt_queues(self, queues: Iterable[tuple[str, int]], last_stored_ms: Callable[[str, int], int]) -> None:
        """Create or widen topics for queues without one, so that their messages can be read.

        A directory that is handed over without its tables has such queues, and so has a slave that becomes the master
        before it has heard of a change. A queue beyond those of its topic counts only if it has a message that is newer
        than the table: else the topic was made smaller on purpose.

        Args:
            queues: topic and queue id.
            last_stored_ms: returns the store time of the last message of a queue; -1 if it has none.
        """
        counts: dict[str, int] = {}
        changed_ms = self.topics.version.timestamp_ms
        for topic, queue_id in queues:
            config = self.topics.get(topic)
            if self.topics.is_system(topic):
                continue
            if config is None or (
                queue_id >= max(config.read_queue_nums, config.write_queue_nums)
                and last_stored_ms(topic, queue_id) > changed_ms
            ):
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        for topic, count in counts.items():
            config = self.topics.get(topic)
            try:
                if config is None:
                    self.topics.adopt_queues(topic, count)
                else:
                    self.topics.put(replace(config, read_queue_nums=count, write_queue_nums=count))
            except ReputError as error:
                log.warning("queue_without_topic", topic=topic, detail=str(error))
            else:
                log.warning("topic_widened" if config else "topic_recreated", topic=topic, queues=count)

    def make_retry_topic(self, group: SubscriptionGroupConfig) -> None:
        """Create the retry topic of a group, if it has one; it is saved soon."""
        topic = retry_topic(group.group_name)
        if group.retry_queue_nums > 0 and self.topics.get(topic) is None:
            self.topics.create_internal(topic, group.retry_queue_nums)
            self.topics_soon.changed()

    def close(self) -> None:
        """Save what has changed and close the journal of offsets. Failures are logged, and the rest is still done."""
        self.topics.write_whole()
        for name, table in self._loaded:
            try:
                save_now(table)
            except (OSError, ReputError) as error:
                log.error("table_not_saved", table=name, detail=str(error), hint="check the data directory")
        self.offsets.close()
        self.topics.journal.close()


@dataclass(eq=False, repr=False)
class OffsetSaveService:
    """Writes consumerOffset.json at intervals; its journal has the commits in between."""

    _offsets: ConsumerOffsetManager
    _saver: TableSaver
    _interval_s: Callable[[], float]
    _due: trio.Event = field(default_factory=trio.Event, init=False)

    def committed(self) -> None:
        """Save early if the journal has reached its maximal size."""
        if self._offsets.save_due:
            self._due.set()

    async def sync(self) -> None:
        """Return once every commit made before this call survives a crash of the machine.

        Raises:
            JournalWriteFailed: whether they do is unknown, until the next save.
        """
        async with self._saver.lock:  # a save replaces the journal
            await trio.to_thread.run_sync(self._offsets.sync_journal)

    async def run(self) -> None:
        """Save until cancelled."""
        while True:
            with trio.move_on_after(self._interval_s()):
                await self._due.wait()
            self._due = trio.Event()
            try:
                await self._saver.save()
            except (ReputError, OSError) as error:
                log.error("offsets_not_saved", detail=str(error), hint="check the disk; commits stay in the journal")
                await trio.sleep(_RETRY_INTERVAL_S)
