"""The services, request processors and listeners of a broker, built over its open storage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from reput_broker.compose.delay import DelayParts
from reput_broker.compose.puts import PutParts
from reput_broker.compose.retry import RetryParts
from reput_broker.compose.storage import Storage
from reput_broker.groups.group_state import GroupState
from reput_broker.groups.offset_updates import OffsetSetting
from reput_broker.groups.reply_push import ReplyPusher
from reput_broker.observe.delivery_metrics import GroupSources
from reput_broker.observe.health import StoreHealth
from reput_broker.observe.metrics import MetricsSources
from reput_broker.processors.admin import AdminProcessor
from reput_broker.processors.client import ClientProcessor
from reput_broker.processors.fetch import FetchProcessor
from reput_broker.processors.filter_check import FilterCheck
from reput_broker.processors.group_access import GroupAccess
from reput_broker.processors.group_members import GroupMembersProcessor
from reput_broker.processors.group_offsets import GroupOffsetsProcessor
from reput_broker.processors.group_overview import GroupOverviewProcessor
from reput_broker.processors.group_settings import GroupSettingsProcessor
from reput_broker.processors.lock import LockProcessor
from reput_broker.processors.offset import OffsetProcessor
from reput_broker.processors.pull import PullProcessor
from reput_broker.processors.put import PutProcessor
from reput_broker.processors.put_once import PutOnce
from reput_broker.processors.query import QueryProcessor
from reput_broker.processors.reply import ReplyProcessor
from reput_broker.processors.route import RouteProcessor
from reput_broker.processors.send import SendProcessor
from reput_broker.processors.topic import TopicProcessor
from reput_broker.processors.topic_access import TopicAccess
from reput_broker.request import Client, Handler
from reput_broker.retry.deduplication import Deduplication
from reput_broker.server.dispatch import RequestDispatcher
from reput_broker.server.listener import Server
from reput_broker.staging.parts import StagingParts
from reput_broker.surroundings import Surroundings
from reput_broker.upkeep.clean_service import CleanFilesService


class Part(Protocol):
    """A part of the broker with background tasks."""

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the broker does."""


class Processor(Protocol):
    """Handles the requests of one command family."""

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""


class BrokerParts:
    """What serves requests, and the tasks behind it. Start `tasks` before `server`.

    Args:
        storage: open.
        sources: the figures of the parts are added to them.
        connections_max: the open files that are left for connections.
    """

    def __init__(
        self,
        storage: Storage,
        sources: MetricsSources,
        store_health: StoreHealth,
        surroundings: Surroundings,
        *,
        connections_max: int,
    ) -> None:
        config, counters = sources.config, sources.counters
        store, tables = storage.store, storage.tables
        self._config, self._counters, self._health = config, counters, sources.health
        self._storage = storage
        self.puts = PutParts(config, store, storage.hold, counters, store_health.turn_read_only)
        self.groups = GroupState(
            config.groups,
            counters,
            store,
            tables,
            on_commit=tables.offsets_soon.committed,
            clock_ms=storage.clock_ms,
        )
        self._topic_access = TopicAccess(tables.topics, tables.topic_saver, counters)
        self._group_access = GroupAccess(tables.groups, self.groups.online, tables.groups_soon.changed)
        self.staging = StagingParts(
            config.sink,
            store,
            storage.staging,
            tables,
            self._topic_access,
            self.puts.appender,
            self.puts.flush,
            counters,
        )
        self.delay = DelayParts(config, storage, self.puts)
        self.retry = RetryParts(
            config,
            storage,
            self.puts,
            self.delay.delay_hook,
            self.groups,
            self._topic_access,
            self._group_access,
            counters.retry,
        )
        self._clean = CleanFilesService(
            store,
            config.store,
            surroundings,
            counters,
            sources.disk,
            on_disk=store_health.note_disk,
            before_delete=self.staging.before_delete,
            waiting_from=storage.schedule.waiting_from,
        )
        self._add_figures(sources)
        dispatcher = RequestDispatcher(
            self._handlers(),
            self.puts.appender.append,
            self.puts.put_by,
            lambda can_wait: self.puts.reput.dispatch_acknowledged(can_wait=can_wait),
            config.limits,
        )
        self.server = Server(
            config, dispatcher, counters, connections_max=connections_max, on_gone=self._client_gone
        )

    def _add_figures(self, sources: MetricsSources) -> None:
        storage, groups = self._storage, self.groups
        sources.store = storage.store
        sources.topics, sources.offsets = storage.tables.topics, storage.tables.offsets
        sources.groups = GroupSources(
            storage.tables.groups, groups.online, groups.progress, groups.lag.figures
        )
        sources.held_pulls_bytes = lambda: storage.hold.held_bytes
        sources.open_transactions = lambda: storage.half_queue.transactions.open_by_topic
        sources.delays = self.delay.sources()

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the broker does."""
        parts: tuple[Part, ...] = (
            self.puts,
            self._storage.tables,
            self.groups,
            self.staging,
            self.retry,
            self.delay,
        )
        return (
            *(task for part in parts for task in part.tasks()),
            self._storage.hold.run,
            self._clean.run,
        )

    def _client_gone(self, client: Client) -> None:
        self._storage.hold.drop_client(client)
        self.groups.client_gone(client)

    def _handlers(self) -> dict[int, Handler]:
        filter_check = FilterCheck(self._config.filters)
        processors: tuple[Processor, ...] = (
            *self._message_processors(filter_check),
            *self._group_processors(),
            *self._broker_processors(),
            filter_check,
            self.delay,
            self.retry,
            self.staging,
        )
        return {code: handle for processor in processors for code, handle in processor.handlers().items()}

    def _message_processors(self, filter_check: FilterCheck) -> tuple[Processor, ...]:
        config, counters, storage, puts, groups = (
            self._config,
            self._counters,
            self._storage,
            self.puts,
            self.groups,
        )
        store, clock_ms, access = storage.store, storage.clock_ms, self._topic_access
        deduplication = Deduplication(
            store,
            dispatch=puts.reput.catch_up,
            clock_ms=clock_ms,
            window_s=lambda: config.dedup.window,
        )
        once = PutOnce(deduplication, puts.appender)
        return (
            PutProcessor(store, access, counters, once),
            SendProcessor(
                store,
                access,
                self.retry.redirects,
                once,
                self.retry.back_once,
                groups.requesters,
                cluster=config.cluster,
                default_ack=puts.default_ack,
            ),
            ReplyProcessor(
                store,
                access,
                puts.appender,
                ReplyPusher(groups.requesters, config.limits),
                config.replies,
                counters,
                default_ack=puts.default_ack,
                clock_ms=clock_ms,
            ),
            PullProcessor(
                store,
                access,
                self._group_access,
                groups,
                storage.hold,
                config.limits,
                counters,
                filter_check,
            ),
            FetchProcessor(store, storage.tables.topics, access, broker_name=config.broker_name),
            QueryProcessor(store),
        )

    def _group_processors(self) -> tuple[Processor, ...]:
        config, storage, groups, access = self._config, self._storage, self.groups, self._group_access
        store, tables, clock_ms = storage.store, storage.tables, storage.clock_ms
        setting = OffsetSetting(
            tables.offsets,
            groups.resets,
            groups.progress,
            groups.online,
            config.groups,
            storage.hold.release_group,
        )
        return (
            OffsetProcessor(store, self._topic_access, access, tables.offsets, groups.commits),
            ClientProcessor(groups.membership, access, tables.topics, tables.topics_soon.changed),
            LockProcessor(groups.locks, access, tables.topics),
            GroupSettingsProcessor(
                tables.groups, tables.group_saver, access, tables.offsets, storage.hold, groups.forget_group
            ),
            GroupMembersProcessor(
                groups.membership,
                tables.groups,
                tables.topics,
                tables.offsets,
                store,
                broker_name=config.broker_name,
                clock_ms=clock_ms,
            ),
            GroupOffsetsProcessor(
                store,
                tables,
                groups,
                self._topic_access,
                access,
                setting,
                broker_name=config.broker_name,
                clock_ms=clock_ms,
            ),
            GroupOverviewProcessor(store, tables, groups, clock_ms=clock_ms),
        )

    def _broker_processors(self) -> tuple[Processor, ...]:
        config, storage, store = self._config, self._storage, self._storage.store
        topics = storage.tables.topics
        return (
            RouteProcessor(config, topics),
            TopicProcessor(
                store,
                storage.tables,
                self._topic_access,
                storage.hold,
                self._counters,
                broker_name=config.broker_name,
                forget=self.groups.forget_topic,
            ),
            AdminProcessor(
                store,
                self._health,
                self._counters,
                delete_files=self._clean.delete_now,
                more_figures=storage.schedule.figures,
            ),
        )
