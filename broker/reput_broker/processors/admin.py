"""The broker as a whole: runtime figures (28), deletion by hand (329) (RocketMQ: AdminBrokerProcessor)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import trio

from reput_broker.observe.counters import Counters
from reput_broker.observe.health import Health
from reput_broker.observe.metrics import broker_version
from reput_broker.request import Handler, Request, Response
from reput_broker.store.message_store import MessageStore
from reput_broker.store.options import StoreOptions
from reput_broker.store.retention import disk_used_ratio
from reput_protocol import kernel
from reput_protocol.codes import ROCKETMQ_VERSION, RequestCode
from reput_protocol.commands.topic import KVTable


class AdminProcessor:
    """Reports on the broker as a whole.

    Args:
        delete_files: deletes expired files of the log now.
        more_figures: of other parts, for the runtime figures.
    """

    def __init__(
        self,
        store: MessageStore,
        health: Health,
        counters: Counters,
        *,
        delete_files: Callable[[], None],
        more_figures: Callable[[], dict[str, object]],
    ) -> None:
        self._store = store
        self._health = health
        self._counters = counters
        self._delete_files = delete_files
        self._more_figures = more_figures

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired_commit_log,
        }

    def delete_expired_commit_log(self, request: Request) -> Response:
        """Delete expired files of the log now, at any hour; does not wait for the deletion."""
        request.client.note_role("admin")
        self._delete_files()
        return Response()

    async def runtime_info(self, request: Request) -> Response:
        """Answer with the runtime figures, all as text, under RocketMQ's names."""
        request.client.note_role("admin")
        store, stats = self._store, self._store.stats
        options = store.options
        logs, queues = await trio.to_thread.run_sync(_look_at_disks, options)
        buffers = store.buffers_available
        figures: dict[str, object] = {
            "brokerVersionDesc": f"Reput {broker_version()}",
            "brokerVersion": ROCKETMQ_VERSION,
            "brokerActive": "true",
            "brokerState": str(self._health.state),
            "kernel": kernel.FORM,
            "bootTimestamp": int(self._health.started_at_s * 1000),
            "runtime": _duration(time.time() - self._health.started_at_s),
            "msgPutTotalTodayNow": stats.put_messages,
            "msgGetTotalTodayNow": stats.get_messages,
            "putMessageTimesTotal": stats.put_messages,
            "putMessageSizeTotal": stats.put_bytes,
            "putMessageFailedTimes": stats.put_refused,
            "putMessageAverageSize": round(stats.put_bytes / stats.put_messages, 1)
            if stats.put_messages
            else 0.0,
            "commitLogMinOffset": store.min_physical_offset,
            "commitLogMaxOffset": store.max_physical_offset,
            **{f"commitLogDiskRatio_{path}": f"{ratio:.4f}" for path, ratio in logs.items()},
            "commitLogDiskRatio": f"{min(logs.values()):.4f}",
            "consumeQueueDiskRatio": f"{queues:.4f}",
            "dispatchBehindBytes": store.dispatch_behind_bytes,
            "remainHowManyDataToCommit": f"{store.commit_behind_bytes} B",
            **({} if buffers is None else {"remainTransientStoreBufferNumbs": buffers}),
            "remainHowManyDataToFlush": f"{store.flush_behind_bytes} B",
            "flushedWhere": store.flushed_offset,
            "connections": sum(listener.open for listener in self._counters.listeners.values()),
            **self._more_figures(),
        }
        return Response(0, body=KVTable({name: str(value) for name, value in figures.items()}).to_json())


def _look_at_disks(options: StoreOptions) -> tuple[dict[Path, float], float]:
    logs = {path: disk_used_ratio(path) for path in options.writable_log_dirs}
    return logs, disk_used_ratio(options.consume_queue_dir)


def _duration(seconds: float) -> str:
    """Return a time span as RocketMQ's tools print it."""
    minutes, s = divmod(int(max(0.0, seconds)), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    return f"[ {days} days, {h} hours, {m} minutes, {s} seconds ]"
