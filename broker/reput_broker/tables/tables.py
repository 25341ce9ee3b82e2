"""The tables of a broker together: topics, consumer offsets, consumer groups, the name service's settings and
others, each with what saves it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
import trio
from msgspec.structs import replace

from reput_broker.config.model import BrokerConfig
from reput_broker.tables.config_file import SavedTable
from reput_broker.tables.kv_config import KVConfigManager
from reput_broker.tables.message_request_modes import MessageRequestModes
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.schedules import Schedules
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_broker.tables.table_saver import SaveSoon, TableSaver, save_now
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.errors import InvalidName, ReputError
from reput_protocol.names import retry_topic

log = structlog.get_logger(__name__)

_RETRY_INTERVAL_S = 1.0


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
            directory / "consumerOffset.json",
            clock_ms=clock_ms,
            journal_size_max=config.offsets.journal_size_max,
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

    def adopt_queues(
        self, queues: Iterable[tuple[str, int]], last_stored_ms: Callable[[str, int], int]
    ) -> None:
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


class OffsetSaveService:
    """Writes consumerOffset.json at intervals; its journal has the commits in between."""

    def __init__(
        self, offsets: ConsumerOffsetManager, saver: TableSaver, interval_s: Callable[[], float]
    ) -> None:
        self._offsets = offsets
        self._saver = saver
        self._interval_s = interval_s
        self._due = trio.Event()

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
                log.error(
                    "offsets_not_saved",
                    detail=str(error),
                    hint="check the disk; commits stay in the journal",
                )
                await trio.sleep(_RETRY_INTERVAL_S)
