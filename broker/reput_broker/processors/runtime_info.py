"""The broker as a whole: runtime figures (28), statistics (315), deletion by hand (27, 306, 329), and what RocketMQ
may have in RocksDB (354, 200056) (RocketMQ: AdminBrokerProcessor); READ_HISTORY: its figures in the past days, for
consoles (Reput's own)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import trio

from reput_broker.observe.counters import Histogram, merged
from reput_broker.observe.history.file import COLUMNS, Kind, Stretch
from reput_broker.observe.history.recorder import History, facts
from reput_broker.observe.metrics import MetricsSources, broker_version
from reput_broker.observe.rocketmq_catalogue import waiting_requests
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves
from reput_broker.store.message_store import MessageStore
from reput_broker.store.retention import disk_used_ratio
from reput_broker.tenure.core import Core, RoleDuties
from reput_broker.upkeep.clean_service import CleanFilesService
from reput_protocol import kernel
from reput_protocol.codes import ROCKETMQ_VERSION, RequestCode
from reput_protocol.commands import statistics as bodies
from reput_protocol.commands.base import encode_json
from reput_protocol.commands.statistics import ViewBrokerStatsHeader
from reput_protocol.commands.topic import KVTable
from reput_protocol.errors import ErrorCode

log = structlog.get_logger(__name__)

_CHECK_OK: Final = 0
_NO_POOL: Final = (1 << 31) - 1
"""RocketMQ's number of free buffers without a pool."""
_POOLS: Final = {"send": "send", "pull": "pull", "litePull": "lite_pull", "query": "query_message", "ack": "ack"}
"""RocketMQ's names of thread pools in runtime figures, and the processor of each."""


@dataclass(eq=False, repr=False)
class RuntimeInfoProcessor(Processor):
    """Reports on the broker as a whole.

    Args:
        capacities: of queues of requests, for the runtime figures.
    """

    _core: Core
    _role: RoleDuties
    _clean: CleanFilesService
    _capacities: dict[str, int]

    @serves(RequestCode.VIEW_BROKER_STATS_DATA)
    def view_statistics(self, request: Request) -> Response:
        """Answer with a statistic of a topic or a group in the last minute, hour and day."""
        header = ViewBrokerStatsHeader.from_ext(request.ext)
        found = self._core.statistics.view(header.stats_name, header.stats_key)
        if found is None:
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"there is no statistic {header.stats_name!r} of {header.stats_key!r}",
                response_code=1,
            )
        return Response(0, body=found.to_json())

    @serves(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    def clean_expired_consume_queues(self, _request: Request) -> Response:
        """Delete files of queues and index that refer only to deleted messages; does not wait for the deletion."""
        self._clean.clean_now()
        return Response()

    @serves(RequestCode.TRIGGER_DELETE_FILES, RequestCode.DELETE_EXPIRED_COMMITLOG)
    def delete_expired_commit_log(self, _request: Request) -> Response:
        """Delete expired files of the log now, at any hour; does not wait for the deletion."""
        self._clean.delete_now()
        return Response()

    @serves(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS)
    def check_rocksdb(self, _request: Request) -> Response:
        """Answer, and log, that no queues are in RocksDB; RocketMQ's tool refers to the log for the result."""
        result = "queues are files only, and there are none in RocksDB to compare them with"
        log.info("rocksdb_checked", result=result)
        return Response(0, body=encode_json({"checkResult": result, "checkStatus": _CHECK_OK}))

    @serves(RequestCode.POP_ROLLBACK)
    def export_pop_records(self, _request: Request) -> Response:
        """Move records of POP from RocksDB to the log: all of them are there always."""
        return Response()

    @serves(RequestCode.GET_BROKER_RUNTIME_INFO)
    async def runtime_info(self, _request: Request) -> Response:
        """Answer with the runtime figures, all as text, under RocketMQ's names."""
        store, stats = self._core.store, self._core.store.stats
        disks = await trio.to_thread.run_sync(_look_at_disks, store)
        logs = disks.used_by_logs
        buffers = store.buffers_available
        figures: dict[str, object] = {
            "brokerVersionDesc": f"Reput {broker_version()}",
            "brokerVersion": ROCKETMQ_VERSION,
            "brokerActive": "true",
            "brokerState": str(self._core.sources.health.state),
            "kernel": kernel.FORM,
            "bootTimestamp": int(self._core.sources.health.started_at_s * 1000),
            "runtime": _duration(time.time() - self._core.sources.health.started_at_s),
            "putMessageTimesTotal": stats.put_messages,
            "putMessageSizeTotal": stats.put_bytes,
            "putMessageFailedTimes": stats.put_refused,
            "putMessageAverageSize": round(stats.put_bytes / stats.put_messages, 1) if stats.put_messages else 0.0,
            "putMessageEntireTimeMax": round(1000 * self._core.counters.longest_put_s),
            "getMessageEntireTimeMax": round(1000 * stats.get_longest_s),
            "commitLogMinOffset": store.min_physical_offset,
            "commitLogMaxOffset": store.max_physical_offset,
            **{f"commitLogDiskRatio_{path}": f"{ratio:.4f}" for path, ratio in logs.items()},
            "commitLogDiskRatio": f"{min(logs.values()):.4f}",
            "consumeQueueDiskRatio": f"{disks.used_by_queues:.4f}",
            "commitLogDirCapacity": f"Total : {_gib(disks.total_b)}, Free : {_gib(disks.free_b)}.",
            "earliestMessageTimeStamp": disks.earliest_ms,
            "startAcceptSendRequestTimeStamp": 0,
            "pageCacheLockTimeMills": round(1000 * self._core.puts.lock.held_s),
            **self._latencies(),
            **self._queues(),
            **self._core.statistics.figures(),
            "dispatchBehindBytes": store.dispatch_behind_bytes,
            "remainHowManyDataToCommit": f"{store.commit_behind_bytes} B",
            "dispatchMaxBuffer": stats.dispatch_behind_max,
            "remainTransientStoreBufferNumbs": _NO_POOL if buffers is None else buffers,
            "remainHowManyDataToFlush": f"{store.flush_behind_bytes} B",
            "flushedWhere": store.flushed_offset,
            "connections": sum(listener.open for listener in self._core.counters.listeners.values()),
            "brokerRole": self._core.tenures.current.role,
            "brokerId": self._core.tenures.current.broker_id,
            **self._capacities,
            **self._role.runtime_figures(),
        }
        return Response(0, body=KVTable({name: str(value) for name, value in figures.items()}).to_json())

    def _queues(self) -> dict[str, object]:
        """Return the requests that wait under RocketMQ's names; none waits before it is handled, as in its pools."""
        waiting = waiting_requests(self._core.counters)
        figures: dict[str, object] = {"EndTransactionQueueSize": waiting["transaction"]}
        for name, processor in _POOLS.items():
            figures[f"{name}ThreadPoolQueueSize"] = waiting[processor]
            figures[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = 0
        return figures

    def _latencies(self) -> dict[str, object]:
        seconds = merged(self._core.counters.produce_seconds.values())
        return {
            "putLatency99": f"{_quantile(seconds, 0.99) * 1000:.2f}",
            "putLatency999": f"{_quantile(seconds, 0.999) * 1000:.2f}",
        }


def _quantile(values: Histogram, part: float) -> float:
    """Return the bound of the bucket with a quantile; for values above all bounds, the last bound."""
    for bound, count in values.cumulated(values.bounds):
        if count >= part * values.count:
            return min(bound, values.bounds[-1]) if values.count else 0.0
    return values.bounds[-1]


class _Disks(NamedTuple):
    """What a look at the disks finds; `earliest_ms` is the store time of the first message, -1 without one."""

    used_by_logs: dict[Path, float]
    used_by_queues: float
    total_b: int
    free_b: int
    earliest_ms: int


def _look_at_disks(store: MessageStore) -> _Disks:
    options = store.options
    usage = shutil.disk_usage(options.writable_log_dirs[0])
    return _Disks(
        {path: disk_used_ratio(path) for path in options.writable_log_dirs},
        disk_used_ratio(options.consume_queue_dir),
        usage.total,
        usage.free,
        store.oldest_store_timestamp(),
    )


def _gib(size_b: int) -> str:
    return f"{size_b / 2**30:.1f} GiB"


def _duration(seconds: float) -> str:
    """Return a time span as RocketMQ's tools print it."""
    minutes, s = divmod(int(max(0.0, seconds)), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    return f"[ {days} days, {h} hours, {m} minutes, {s} seconds ]"


@dataclass(eq=False, repr=False)
class HistoryProcessor(Processor):
    """Answers from the history, in every role."""

    _history: History
    _sources: MetricsSources

    @serves(RequestCode.READ_HISTORY)
    async def read(self, request: Request) -> Response:
        """Answer with the figures of a range of time, and with the state of the broker now."""
        header = bodies.ReadHistoryHeader.from_ext(request.ext)
        now_ms = self._sources.clock_ms()
        begin_s, end_s = (
            value if value > 0 else now_ms // 1000 + 1 + value for value in (header.begin_seconds, header.end_seconds)
        )
        is_kept = self._history.is_kept
        convert = partial(_encoded, now_ms=now_ms, facts=facts(self._sources), is_kept=is_kept)
        if not is_kept:
            return Response(0, body=convert(Stretch(max(0, begin_s), 1, [])))
        body = await self._history.read(begin_s, end_s, header.rows_max, convert, has_names=header.has_names)
        return Response(0, body=body)


def _encoded(stretch: Stretch, *, now_ms: int, facts: dict[str, Any], is_kept: bool) -> bytes:
    """Return the body. Takes a moment for many rows, so that a worker thread does it."""
    columns = [
        (column.name, _values(None if row is None else row[place] for row in stretch.rows))
        for place, column in enumerate(COLUMNS)
    ]
    groups, topics = (stretch.named.get(kind, {}) for kind in (Kind.GROUP, Kind.TOPIC))
    return encode_json(
        bodies.BrokerHistory(
            stretch.begin_s,
            stretch.step_s,
            len(stretch.rows),
            {name: values for name, values in columns if any(value is not None for value in values)},
            [bodies.GroupHistory(name, *map(_values, values)) for name, values in groups.items()],
            [bodies.TopicHistory(name, *map(_values, values)) for name, values in topics.items()],
            [bodies.BrokerEvent(event.at_ms, event.what.name.lower(), event.epoch) for event in stretch.events],
            now_ms,
            facts,
            is_kept,
        )
    )


def _values(values: Iterable[float | None]) -> list[float | None]:
    """Return values without NaN, and as short as they are exact."""
    return [None if value is None or value != value else round(value, 6) for value in values]
