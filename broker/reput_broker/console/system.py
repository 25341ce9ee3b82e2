"""The broker itself: its clients, its store with retention and configuration, and its cluster."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import asdict

from reput_broker.console.source import ROWS_MAX, Query, Source

_OF_THE_CLUSTER = ("address", "ha", "master", "replication", "slaves", "election", "name_servers")
"""Members of a broker's status."""


async def list_clients(source: Source, query: Query) -> dict[str, Any]:
    """Return the connections whose client id, address, role or group contains `search`, those idle longest last."""
    search = query.text("search").lower()
    found = sorted(await source.admin.list_clients(), key=lambda client: client.idle_millis)
    wanted = [
        client
        for client in found
        if any(
            search in text.lower()
            for text in (client.client_id or "", client.address, client.role, *client.groups)
        )
    ]
    return {
        "at_ms": source.at_ms,
        "total": len(wanted),
        "roles": Counter(client.role for client in found),
        "clients": [asdict(client) for client in wanted[:ROWS_MAX]],
    }


async def show_store(source: Source, query: Query) -> dict[str, Any]:
    """Return the state of the store, what retention does, and every option of the configuration."""
    del query
    status = await source.admin.describe_broker()
    store, disk = status["store"], status["disk"] or {}
    oldest_ms = disk.get("oldest_ms", -1)
    return {
        "at_ms": source.at_ms,
        "data_dir": status["data_dir"],
        "flush": status["flush"],
        "read_only_reason": store["read_only_reason"],
        "start_offset": store["start_offset_b"],
        "end_offset": store["end_offset_b"],
        "flushed_offset": store["flushed_offset_b"],
        "flush_behind_b": store["flush_behind_b"],
        "dispatch_behind_b": store["dispatch_behind_b"],
        "oldest_ms": oldest_ms if oldest_ms >= 0 else None,
        "size_b": disk.get("size_b", {}),
        "free_b": disk.get("free_b", 0),
        "used_ratio": disk.get("used_ratio", 0.0),
        "level": disk.get("level", "ok"),
        "looked_up_ms": round(1000 * disk.get("looked_up_at", 0.0)),
        "deleted_files": store["deleted_files"],
        "recovery_s": store["recovery_s"],
        "recovery_truncated_b": store["recovery_truncated_b"],
        "options": [asdict(option) for option in await source.admin.broker_config()],
    }


async def show_cluster(source: Source, query: Query) -> dict[str, Any]:
    """Return the brokers that the name service knows, and what this one knows of its copies and its election."""
    del query
    found, status = await source.admin.cluster_info(), await source.admin.describe_broker()
    clusters = {name: cluster for cluster, names in found.cluster_addr_table.items() for name in names}
    is_slave = "behind_b" in status
    return {
        "at_ms": source.at_ms,
        "cluster": source.config.cluster,
        "broker": source.config.broker_name,
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
        "role": status["role"],
        "epoch": status["epoch"],
        "in_sync": status.get("copies_in_sync"),
        "wanted": status.get("copies_wanted"),
        "replicated_offset": status.get("replicated_offset"),
        "copying": {
            "is_connected": status["is_connected"],
            "lag_bytes": status["behind_b"],
            "lag_s": status["behind_s"],
        }
        if is_slave
        else None,
        "status": {name: value for name, value in status.items() if name in _OF_THE_CLUSTER},
    }
