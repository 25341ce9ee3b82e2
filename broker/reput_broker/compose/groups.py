"""What a broker has for consumer groups, put together: tables, services, processors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
import trio

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.groups.lag import LagService
from reput_broker.groups.membership import Membership
from reput_broker.groups.notifications import GroupNotifier
from reput_broker.groups.offset_setting import OffsetSetting, PendingResets
from reput_broker.groups.progress import GroupProgress
from reput_broker.groups.queue_locks import QueueLocks
from reput_broker.groups.reply_push import Requesters
from reput_broker.groups.store_times import StoreTimes
from reput_broker.long_polling import PullRequestHoldService
from reput_broker.observe.counters import Counters
from reput_broker.processors.client import ClientProcessor
from reput_broker.processors.group_access import GroupAccess
from reput_broker.processors.group_members import GroupMembersProcessor
from reput_broker.processors.group_offsets import GroupOffsetsProcessor
from reput_broker.processors.group_overview import GroupOverviewProcessor
from reput_broker.processors.group_settings import GroupSettingsProcessor
from reput_broker.processors.lock import LockProcessor
from reput_broker.processors.offset import OffsetCommits
from reput_broker.processors.topic_access import TopicAccess
from reput_broker.request import Client, Handler
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_broker.tables.table_saver import SaveSoon, TableSaver
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol.errors import InvalidName

log = structlog.get_logger(__name__)


def open_groups(
    tables: Path, offsets: ConsumerOffsetManager, options: GroupsConfig, clock_ms: Callable[[], int]
) -> SubscriptionGroupManager:
    """Read the table of groups. Blocks. Where there is no file yet, groups that have offsets are made from these.

    Raises:
        ConfigFileDamaged, OSError: it cannot be read; nothing was changed.
    """
    settings = SubscriptionGroupManager(tables / "subscriptionGroup.json", clock_ms=clock_ms, options=options)
    settings.load()
    if not settings.has_file and options.auto_create:
        for group in sorted(offsets.groups()):
            try:
                settings.find_or_create(group)
            except InvalidName as error:
                log.warning("offsets_without_group", group=group, detail=str(error))
    return settings


class GroupParts:
    """Everything about groups that is made once the store and the tables are open."""

    def __init__(
        self,
        options: GroupsConfig,
        counters: Counters,
        store: MessageStore,
        topics: TopicConfigManager,
        topic_saver: TableSaver,
        topic_access: TopicAccess,
        settings: SubscriptionGroupManager,
        saver: TableSaver,
        offsets: ConsumerOffsetManager,
        hold: PullRequestHoldService,
        *,
        on_commit: Callable[[], None],
        broker_name: str,
        clock_ms: Callable[[], int],
    ) -> None:
        self._counters = counters
        self._hold = hold
        self.settings = settings
        self.online = ConsumerGroups()
        self.locks = QueueLocks(options, trio.current_time)
        self.notifier = GroupNotifier(self.online, settings, options)
        self.membership = Membership(options, counters, self.online, self.notifier, self.locks)
        self.requesters = Requesters(self.membership.producers)
        self.resets = PendingResets()
        self.progress = GroupProgress()
        self.commits = OffsetCommits(offsets, self.resets, self.progress, on_commit, clock_ms)
        self._save_groups = SaveSoon(saver, "groups")
        self._save_topics = SaveSoon(topic_saver, "topics")
        self.access = GroupAccess(settings, self.online, self._save_groups.changed)
        times = StoreTimes(store)
        self.lag = LagService(store, offsets, times, options, clock_ms=clock_ms)
        setting = OffsetSetting(offsets, self.resets, self.progress, self.online, hold, options)
        self._processors = (
            ClientProcessor(self.membership, self.access, topics, self._save_topics.changed),
            LockProcessor(self.locks, self.access, topics),
            GroupSettingsProcessor(settings, saver, self.access, offsets, hold, self._forget_group),
            GroupMembersProcessor(
                self.membership, settings, topics, offsets, store, broker_name=broker_name, clock_ms=clock_ms
            ),
            GroupOffsetsProcessor(
                store,
                times,
                topics,
                topic_access,
                self.access,
                self.online,
                offsets,
                self.progress,
                setting,
                broker_name=broker_name,
                clock_ms=clock_ms,
            ),
            GroupOverviewProcessor(
                store,
                times,
                topics,
                settings,
                self.membership,
                self.locks,
                offsets,
                self.progress,
                self.lag.figures,
                clock_ms=clock_ms,
            ),
        )

    def handlers(self) -> dict[int, Handler]:
        """Return the processors by request code."""
        return {code: handle for part in self._processors for code, handle in part.handlers().items()}

    def services(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the broker does."""
        return (
            self.notifier.run,
            self.membership.run,
            self.lag.run,
            self._save_groups.run,
            self._save_topics.run,
        )

    def client_gone(self, client: Client) -> None:
        """Let go of everything that hangs on a connection that has ended."""
        self._hold.drop_client(client)
        self.membership.gone(client)
        self.requesters.gone(client)

    def forget_topic(self, topic: str) -> None:
        """Let go of everything that is kept of a topic that is deleted, but for its offsets."""
        self.resets.forget_topic(topic)
        self.progress.forget_topic(topic)
        self.locks.forget_topic(topic)
        self.lag.figures.forget_topic(topic)

    def _forget_group(self, group: str) -> None:
        self.resets.forget_group(group)
        self.progress.forget_group(group)
        self.locks.forget_group(group)
        self.lag.figures.forget_group(group)
        self._counters.forget_group(group)
