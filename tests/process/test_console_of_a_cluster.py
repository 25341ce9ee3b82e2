"""The console of three brokers of a group: one shows all of them, also while one is away and after a failover."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.broker import Broker
from reput_broker.console import members
from reput_client import Message, Producer
from support.console_client import ConsoleClient
from support.elected_group import ElectedGroup

pytestmark = pytest.mark.process


def of(broker: Broker) -> ConsoleClient:
    assert broker.http_address is not None
    return ConsoleClient(broker.http_address)


async def shown(console: ConsoleClient, is_wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the page of all brokers once it shows what is wanted."""
    with trio.fail_after(60):  # three brokers and their consoles share one processor
        while True:
            answer = await trio.to_thread.run_sync(console.ask, "GET", console.path("brokers", begin=-60))
            assert answer.status in (200, 503)  # 503 while its role changes
            if answer.status == 200 and is_wanted(answer.members):
                page: dict[str, Any] = answer.members
                return page
            await trio.sleep(0.1)


def rows(page: dict[str, Any]) -> dict[str, Any]:
    return {row["address"]: row for row in page["brokers"]}


def last(columns: dict[str, Any], name: str) -> Any:
    return next((value for value in reversed(columns.get(name, [])) if value is not None), None)


@pytest.mark.trio
async def test_any_broker_shows_all_of_them_and_the_pages_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_WATCH_S", 0.5)
    group = ElectedGroup(tmp_path, lease_s=6.0)
    addresses = [f"127.0.0.1:{port}" for port, _ in group.ports.values()]
    async with trio.open_nursery() as nursery:
        ends = [await nursery.start(serve, group, number) for number in range(3)]
        try:
            await look(group, addresses, ends, nursery)
        finally:
            nursery.cancel_scope.cancel()


async def serve(group: ElectedGroup, number: int, task_status: trio.TaskStatus[Callable[[], Awaitable[None]]]) -> None:
    """Run one broker until the function that it starts with is called, which returns once it has stopped."""
    ends, ended = trio.Event(), trio.Event()

    async def end() -> None:
        ends.set()
        await ended.wait()

    async with group.member(number, http_port=0):
        task_status.started(end)
        await ends.wait()
    ended.set()


async def look(
    group: ElectedGroup, addresses: list[str], ends: list[Callable[[], Awaitable[None]]], nursery: trio.Nursery
) -> None:
    console = of(group.brokers[1])
    await group.in_sync(0, 1, 2)
    async with Producer(addresses[0], group="p") as producer:
        await producer.send_batch([Message("T", b"x") for _ in range(500)])

    # The figures of a slave's console: of each, and added up.
    page = await shown(
        console,
        lambda page: (
            max(page["total"]["columns"].get("messages_in_per_s", [0]), key=lambda v: v or 0)
            and rows(page).keys() == {*addresses}
            and all(row["figures"] for row in page["brokers"])
            and last(page["total"]["columns"], "is_master") == 1
        ),
    )
    assert [(row["address"], row["broker_id"] == 0) for row in rows(page).values()] == [
        (address, address == addresses[0]) for address in sorted(addresses, key=lambda a: rows(page)[a]["broker_id"])
    ]
    assert [row["address"] for row in page["brokers"] if row["is_own"]] == [addresses[1]]
    sums = page["total"]["columns"]["messages_in_per_s"]
    each = [row["figures"]["columns"].get("messages_in_per_s", []) for row in page["brokers"]]
    assert max(v for v in sums if v) == pytest.approx(max(v for one in each for v in one if v))
    assert last(page["total"]["columns"], "memory_bytes") > 2 * last(
        rows(page)[addresses[1]]["figures"]["columns"], "memory_bytes"
    )

    # The pages of another one, and of none.
    async def get(name: str, **values: object) -> Any:
        return await trio.to_thread.run_sync(partial(console.get, name, **values))

    topics = await get("topics", member=addresses[0])
    assert [topic["topic"] for topic in topics["topics"]] == ["T"]
    assert (await get("cluster", member=addresses[0]))["status"]["address"] == addresses[0]
    assert (await get("cluster"))["status"]["address"] == addresses[1]
    assert (await get("history", member=addresses[2]))["is_kept"]
    unknown = await trio.to_thread.run_sync(partial(console.refused, "topics", member="127.0.0.1:1"))
    assert (unknown.status, "no broker of this cluster" in unknown.members["error"]) == (404, True)

    # The master goes: it is away since it answered last, and delays nothing; the others go on.
    stopped_ms = 1000 * time.time()
    await ends[0]()
    # Its connection may break under a request first.
    page = await shown(console, lambda page: "Connection refused" in (rows(page)[addresses[0]]["error"] or ""))
    assert stopped_ms - 5000 < rows(page)[addresses[0]]["away_ms"] <= 1000 * time.time()
    began_at = time.monotonic()
    # A page that was not asked for: those that were are shared for a moment.
    gone = await trio.to_thread.run_sync(partial(console.refused, "groups", member=addresses[0]))
    assert (gone.status, "is unavailable" in gone.members["error"]) == (503, True)
    assert time.monotonic() - began_at < 1.0
    new = await group.in_sync(1, 2)
    page = await shown(
        console,
        lambda page: any(
            event["what"] == "became_master" and event["epoch"] > 1
            for event in (rows(page)[new.address]["figures"] or {"events": []})["events"]
        ),
    )
    (event,) = (event for event in rows(page)[new.address]["figures"]["events"] if event["what"] == "became_master")
    assert stopped_ms <= event["at_ms"] <= 1000 * time.time()

    # It comes back, with what it was before in its history.
    await nursery.start(serve, group, 0)
    page = await shown(
        console,
        lambda page: rows(page)[addresses[0]]["figures"] and len(rows(page)[addresses[0]]["figures"]["events"]) >= 5,
    )
    events = rows(page)[addresses[0]]["figures"]["events"]
    assert [event["what"] for event in events][-2:] == ["started", "became_slave"]
    assert "stopped" in [event["what"] for event in events]
    assert max(v or 0 for v in rows(page)[addresses[0]]["figures"]["columns"]["messages_in_per_s"]) > 0
