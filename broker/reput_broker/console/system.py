"""The broker itself: its clients, its store with retention and configuration, and its cluster."""

from __future__ import annotations

from collections import Counter
from typing import Any

import trio

from reput_broker.config.description import describe
from reput_broker.console.source import QUEUES_A_TURN, ROWS_MAX, Query, Source
from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import ClusterInfo

_OF_THE_CLUSTER = ("address", "ha", "master", "replication", "slaves", "election", "name_servers")
"""Members of the status page."""


async def list_clients(source: Source, query: Query) -> dict[str, Any]:
    """Return the connections whose client id, address, role or group contains `search`, those idle longest last."""
    search = query.text("search").lower()
    found = await source.serving.clients.connections()
    roles: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    total = 0
    for position, client in enumerate(sorted(found, key=lambda client: client.idle_millis)):
        if position % QUEUES_A_TURN == 0:
            await trio.lowlevel.checkpoint()
        roles[client.role] += 1
        texts = (client.client_id or "", client.address, client.role, *client.groups)
        if search and not any(search in text.lower() for text in texts):
            continue
        total += 1
        if len(rows) < ROWS_MAX:
            rows.append(
                {
                    "address": client.address,
                    "role": client.role,
                    "client": client.client_id,
                    "groups": client.groups,
                    "language": client.language,
                    "version": client.version,
                    "protocol": client.protocol,
                    "listener": client.listener,
                    "connected_ms": client.connected_millis,
                    "idle_ms": client.idle_millis,
                }
            )
    return {"at_ms": source.figures.clock_ms(), "total": total, "roles": dict(roles), "clients": rows}


async def show_store(source: Source, query: Query) -> dict[str, Any]:
    """Return the state of the store, what retention does, and every option of the configuration."""
    del query
    figures, store, config = source.figures, source.store, source.figures.config
    disk, stats = figures.disk, source.store.stats
    return {
        "at_ms": figures.clock_ms(),
        "data_dir": _text(str(config.data_dir)),
        "flush": config.store.flush,
        "read_only_reason": store.read_only_reason,
        "start_offset": store.min_physical_offset,
        "end_offset": store.max_physical_offset,
        "flushed_offset": store.flushed_offset,
        "flush_behind_b": store.flush_behind_bytes,
        "dispatch_behind_b": store.dispatch_behind_bytes,
        "oldest_ms": disk.oldest_store_timestamp_ms if disk.oldest_store_timestamp_ms >= 0 else None,
        "size_b": dict(disk.size_bytes),
        "free_b": disk.free_bytes,
        "used_ratio": disk.used_ratio,
        "level": str(disk.level),
        "looked_up_ms": round(1000 * disk.looked_up_at_s),
        "deleted_b": dict(figures.counters.deleted_bytes),
        "deleted_files": {
            f"{part} ({reason})": count
            for (part, reason), count in figures.counters.segments_deleted.items()
            if count
        },
        "put_messages": stats.put_messages,
        "put_refused": stats.put_refused,
        "flushes": stats.flushes,
        "recovery_s": round(figures.recovery_duration_s, 3),
        "recovery_truncated_b": figures.recovery_truncated_bytes,
        "options": [
            {
                "key": row.key,
                "value": _text(row.value),
                "source": row.source,
                "is_default": row.value == row.default,
                "live": row.live,
                "description": row.description,
            }
            for row in describe(config)
        ],
    }


def _text(path: str) -> str:
    """Return text that JSON can hold: a path may have bytes that are not UTF-8."""
    return path.encode("utf-8", "replace").decode()


async def show_cluster(source: Source, query: Query) -> dict[str, Any]:
    """Return the brokers that the name service knows, and what this one knows of its copies and its election."""
    del query
    found = ClusterInfo.from_json((await source.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    clusters = {name: cluster for cluster, names in found.cluster_addr_table.items() for name in names}
    config, replication = source.figures.config, source.figures.replication
    figures = None if replication is None else replication()
    slave = None if figures is None or figures.slave is None else figures.slave._asdict()
    master = None if figures is None or figures.master is None else figures.master
    return {
        "at_ms": source.figures.clock_ms(),
        "cluster": config.cluster,
        "broker": config.broker_name,
        "members": [
            {
                "cluster": clusters.get(name, ""),
                "broker": name,
                "broker_id": int(broker_id),
                "address": address,
            }
            for name, data in sorted(found.broker_addr_table.items())
            for broker_id, address in sorted(data.broker_addrs.items(), key=lambda item: int(item[0]))
        ][:ROWS_MAX],
        "role": None if figures is None else figures.role,
        "epoch": None if figures is None else figures.epoch,
        "in_sync": None if master is None else master.in_sync,
        "wanted": None if master is None else master.wanted,
        "replicated_offset": None if master is None else master.replicated_offset,
        "copying": slave,
        "status": {name: value for name, value in source.status().items() if name in _OF_THE_CLUSTER},
    }
