"""What /status shows of any server, and of a broker's store."""

from __future__ import annotations

from typing import Any

from reput_broker.config.description import digest
from reput_broker.observe.metrics import MetricsSources, broker_version
from reput_protocol import kernel


def status_of(sources: MetricsSources) -> dict[str, Any]:
    """Return version, state, time of the start, configuration, store and disk as a JSON object."""
    disk = sources.disk
    return {
        "version": broker_version(),
        "kernel": kernel.FORM,
        "state": str(sources.health.state),
        "ready": sources.health.ready,
        "started_at": sources.health.started_at_s,
        "clock_ms": sources.clock_ms(),
        "config_digest": digest(sources.config),
        "config_reload_ok": sources.config_reload_ok,
        "store": _store_status(sources),
        "disk": None
        if not disk.looked_up_at_s
        else {
            "free_b": disk.free_bytes,
            "used_ratio": round(disk.used_ratio, 4),
            "log_used_ratio": round(max(disk.used_ratio, disk.log_used_ratio), 4),
            "level": str(disk.level),
            "looked_up_at": disk.looked_up_at_s,
            "size_b": dict(disk.size_bytes),
            "oldest_ms": disk.oldest_store_timestamp_ms,
        },
    }


def _store_status(sources: MetricsSources) -> dict[str, Any] | None:
    store, topics, groups = sources.store, sources.topics, sources.groups
    if store is None:
        return None
    deleted = sources.counters.segments_deleted.items()
    return {
        "read_only_reason": store.read_only_reason,
        "recovery_s": round(sources.recovery_duration_s, 3),
        "recovery_truncated_b": sources.recovery_truncated_bytes,
        "deleted_files": {f"{part} ({reason})": count for (part, reason), count in deleted if count},
        "start_offset_b": store.min_physical_offset,
        "end_offset_b": store.max_physical_offset,
        "flushed_offset_b": store.flushed_offset,
        "flush_behind_b": store.flush_behind_bytes,
        "dispatch_behind_b": store.dispatch_behind_bytes,
        "queues": len(store.queues()),
        "topics": 0 if topics is None else topics.user_topic_count(),
        "groups": 0 if groups is None else groups.settings.user_group_count(),
        "groups_online": 0 if groups is None else len(groups.online),
        "connections": sum(listener.open for listener in sources.counters.listeners.values()),
    }
