"""The broker itself: its clients, its store with retention and configuration, and its cluster."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import asdict

from reput_broker.console.source import ROWS_MAX, Query, Source


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
    """Return the broker's status, and every option of its configuration."""
    del query
    options = [asdict(option) for option in await source.admin.broker_config()]
    return {"at_ms": source.at_ms, "status": await source.admin.describe_broker(), "options": options}


async def show_cluster(source: Source, query: Query) -> dict[str, Any]:
    """Return the brokers that the name service knows, and this one's status, with its copies and its election."""
    del query
    found = await source.admin.cluster_info()
    clusters = {name: cluster for cluster, names in found.cluster_addr_table.items() for name in names}
    members = [
        {"cluster": clusters.get(name, ""), "broker": name, "broker_id": broker_id, "address": address}
        for name, data in sorted(found.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]
    status = await source.admin.describe_broker()
    return {"at_ms": source.at_ms, "members": members[:ROWS_MAX], "status": status}
