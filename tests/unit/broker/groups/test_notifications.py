"""Members are notified of changes: at once, together, and without waiting for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.groups.membership import GroupNotifier
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_protocol.codes import MessageModel
from reput_protocol.wire.header import HeaderType
from support.member_fakes import FakeClient, channel_of, consumer_data


class Bench:
    def __init__(self, path: Path) -> None:
        self.groups = ConsumerGroups()
        self.settings = SubscriptionGroupManager(path / "subscriptionGroup.json", clock_ms=lambda: 0)
        self.settings.load()
        self.notifier = GroupNotifier(self.groups, self.settings, GroupsConfig())

    def join(self, client_id: str, group: str = "g", **how: Any) -> FakeClient:
        client = FakeClient()
        self.groups.register(channel_of(client_id, client), consumer_data(group, "T", **how), 0.0)
        self.notifier.changed(group)
        return client


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Bench]:
    bench = Bench(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.notifier.run)
        yield bench
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_the_first_change_is_notified_at_once_and_many_more_together(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path) as bench:
        first = bench.join("c0")
        await wait_all_tasks_blocked()
        assert first.sent == [(40, {"consumerGroup": "g"}, b"")]
        others = [bench.join(f"c{number}") for number in range(1, 100)]
        await wait_all_tasks_blocked()
        assert sum(len(client.sent) for client in (first, *others)) == 1
        await trio.sleep(0.101)
        assert [len(client.sent) for client in (first, *others)] == [2] + [1] * 99
        await trio.sleep(10.0)
        assert sum(len(client.sent) for client in (first, *others)) == 101


@pytest.mark.trio
async def test_groups_do_not_wait_for_each_other(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path) as bench:
        bench.join("a", "g")
        await wait_all_tasks_blocked()
        other = bench.join("a", "h")
        await wait_all_tasks_blocked()
        assert other.codes == [40]


@pytest.mark.trio
async def test_clients_that_are_not_notified(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path) as bench:
        broadcasting = bench.join("a", "b", model=MessageModel.BROADCASTING)
        config = bench.settings.find_or_create("quiet")
        assert config is not None
        bench.settings.put(replace(config, notify_consumer_ids_changed_enable=False))
        quiet = bench.join("a", "quiet")
        bench.notifier.changed("offline")
        await trio.sleep(1.0)
        assert broadcasting.sent == quiet.sent == []


@pytest.mark.trio
async def test_a_member_that_reads_nothing_is_notified_later_and_delays_no_other(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path) as bench:
        full = bench.join("full")
        full.is_full = True
        other = bench.join("other")
        await wait_all_tasks_blocked()
        assert (full.codes, other.codes) == ([], [40])
        await trio.sleep(5.0)
        full.is_full = False
        await trio.sleep(2.0)
        assert (full.codes, other.codes) == ([40], [40])


@pytest.mark.trio
async def test_a_member_that_left_before_its_notification_is_forgotten(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path) as bench:
        full = bench.join("full")
        full.is_full = True
        await wait_all_tasks_blocked()
        (channel,) = bench.groups.members("g")
        bench.groups.unregister("g", channel)
        await trio.sleep(2.0)
        full.is_full = False
        await trio.sleep(2.0)
        assert full.sent == []
        gone = bench.join("gone")
        gone.close("peer")
        await trio.sleep(2.0)
        assert bench.notifier._late == {}


@pytest.mark.trio
async def test_the_request_is_in_the_words_of_each_header_type(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    native = FakeClient(HeaderType.MSGPACK)
    bench.groups.register(channel_of("n", native), consumer_data("g", "T"), 0.0)
    bench.notifier.changed("g")
    await bench.notifier._tell_due(0.0)
    assert native.sent == [(40, {"consumerGroup": "g"}, b"")]
