"""Held pulls: woken by messages for them, ended by deadlines, forgotten with their clients."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from reput_broker.config.sections import LimitsConfig, LongPollingConfig
from reput_broker.put.held_pulls import HELD_BYTES, Arrived, PullRequestHoldService
from reput_broker.remoting.request import Refusal
from reput_broker.store.base.dispatch import DispatchBatch, QueueRows
from reput_protocol.errors import ErrorCode
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.tags import MessageFilter, TagFilter
from reput_protocol.properties import encode_properties
from reput_protocol.record.layout import tags_code
from reput_protocol.record.record import Record, encode_record
from reput_protocol.record.scan import scan_dispatch

QUEUE = ("orders", 0)


def arrive(
    service: PullRequestHoldService,
    end: int,
    codes: list[int],
    records: Sequence[bytes] = (),
    queue: tuple[str, int] = QUEUE,
) -> None:
    sizes = array("q", [len(record) for record in records] or [100] * len(codes))
    starts = array("q", [1000 + sum(sizes[:index]) for index in range(len(sizes))])
    rows = QueueRows(*queue, end - len(codes), starts, sizes, array("q", codes), array("q", [0] * len(codes)))
    data = b"".join(records)
    service.arriving(rows, DispatchBatch(1000, 1000 + sum(sizes), data, scan_dispatch(data), [rows]))


class Peer:
    is_closed = False


class Holder:
    """A hold service and a record of which pulls were run again, and when."""

    def __init__(self, **options: Any) -> None:
        self.service = PullRequestHoldService(LongPollingConfig(**options))
        self.resumed: list[tuple[str, float]] = []
        self.abandoned: list[str] = []

    def hold(
        self,
        name: str,
        offset: int,
        wait_s: float = 15.0,
        tags: str | None = None,
        group: str = "g",
        sql: str | None = None,
        client: Any = None,
        queue: tuple[str, int] = QUEUE,
    ) -> Any:
        client = client or Peer()
        request: Any = SimpleNamespace(client=client)
        message_filter: MessageFilter | None = None if tags is None else TagFilter.parse(tags)
        if sql is not None:
            message_filter = SqlFilter.parse(sql)
        self.service.hold(
            request,
            group,
            queue,
            offset,
            message_filter,
            wait_s,
            lambda _: self.resumed.append((name, trio.current_time())),
            lambda: self.abandoned.append(name),
        )
        return client

    def arrive(self, end: int, *tags: str, records: Sequence[bytes] = ()) -> None:
        """Let messages come to the end of the queue: some with only these tags, or these records."""
        arrive(self.service, end, [tags_code(tag) for tag in tags] or [0] * len(records), records)
        self.service.answer_ready()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.resumed]


@pytest.mark.trio
async def test_a_message_wakes_the_pulls_it_is_for() -> None:
    holder = Holder()
    holder.hold("behind", 5)
    holder.hold("ahead", 6)
    holder.hold("filtered", 5, tags="paid")
    holder.arrive(6, "refunded")
    assert holder.names == ["behind"]
    holder.arrive(7, "paid", "refunded")
    assert sorted(holder.names[1:]) == ["ahead", "filtered"]
    assert holder.service.count == 0


@pytest.mark.trio
async def test_pulls_end_at_their_deadlines_and_no_later_than_the_longest_wait(autojump_clock: MockClock) -> None:
    holder = Holder()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(holder.service.run)
        await wait_all_tasks_blocked()
        started_at = trio.current_time()
        holder.hold("long", 0, wait_s=3600.0)
        await trio.sleep(1.0)
        holder.hold("short", 0, wait_s=2.0)
        await trio.sleep(40.0)
        nursery.cancel_scope.cancel()
    assert [(name, round(at - started_at, 3)) for name, at in holder.resumed] == [("short", 3.0), ("long", 25.0)]


@pytest.mark.trio
async def test_a_gone_client_is_forgotten() -> None:
    holder = Holder()
    gone = holder.hold("gone", 0)
    gone.is_closed = True
    holder.hold("here", 0)
    holder.service.drop_client(gone)
    holder.service.drop_client(gone)
    assert holder.service.count == 1
    assert holder.abandoned == ["gone"]
    late = holder.hold("leaves later", 0)
    arrive(holder.service, 1, [tags_code("x")])
    late.is_closed = True
    holder.service.answer_ready()
    holder.hold("gone unnoticed", 1).is_closed = True
    holder.arrive(2, "x")
    assert holder.names == ["here"]
    assert holder.abandoned == ["gone", "leaves later", "gone unnoticed"]
    assert holder.service.count == 0


@pytest.mark.trio
async def test_pulls_that_have_left_take_no_room() -> None:
    holder = Holder()
    for number in range(10_000):
        holder.hold("", number)
        holder.arrive(number + 1, "x")
    assert len(holder.resumed) == 10_000
    assert len(holder.service._ticks) < 200
    assert not any(holder.service._by_tick.values())


@pytest.mark.trio
async def test_all_are_run_again_when_the_broker_stops_or_the_topic_goes() -> None:
    holder = Holder()
    holder.hold("a", 0)
    holder.hold("b", 9)
    holder.service.release_topic("other")
    assert holder.names == []
    holder.service.release_topic("orders")
    assert sorted(holder.names) == ["a", "b"]
    holder.hold("c", 0)
    assert not holder.service.is_stopping
    holder.service.release_all()
    assert holder.service.is_stopping
    assert holder.names[-1] == "c"
    assert holder.service.count == 0


@pytest.mark.trio
async def test_only_the_pulls_of_one_group_are_run_again_when_its_offsets_are_set() -> None:
    holder = Holder()
    holder.hold("a", 0, group="a")
    holder.hold("b", 0, group="b")
    holder.service.release_group("a", [("orders", 1)])
    assert holder.names == []
    holder.service.release_group("a", [("orders", 1), QUEUE])
    assert holder.names == ["a"]
    assert holder.service.count == 1


def arrived(*properties: dict[str, str]) -> list[bytes]:
    return [bytes(encode_record(Record("orders", b"", properties=encode_properties(p)))) for p in properties]


@pytest.mark.trio
async def test_a_pull_with_an_expression_is_woken_by_messages_for_which_it_is_true() -> None:
    holder = Holder()
    holder.hold("large", 0, sql="amount > 100")
    holder.hold("any", 0, sql="amount IS NOT NULL")
    holder.hold("large too", 0, sql="amount > 100")
    holder.hold("behind", 9, sql="amount > 100")
    holder.arrive(1, records=arrived({"region": "eu"}))
    assert holder.names == []
    holder.arrive(3, records=arrived({"amount": "7"}, {"amount": "none"}))
    assert holder.names == ["any"]
    holder.arrive(5, records=arrived({"amount": "7"}, {"amount": "700"}))
    assert sorted(holder.names[1:]) == ["large", "large too"]
    assert holder.service.count == 1


@pytest.mark.trio
async def test_when_it_is_unknown_what_arrived_the_pull_itself_looks() -> None:
    holder = Holder()
    holder.hold("damaged", 0, sql="amount > 100")
    (record,) = arrived({"amount": "7"})
    holder.arrive(1, records=[b"\xff" + record[1:]])
    assert holder.names == ["damaged"]
    holder.hold("many", 0, sql="amount > 100")
    holder.arrive(1000, records=arrived(*[{"amount": "7"}] * 257))
    assert holder.names == ["damaged", "many"]


@pytest.mark.trio
async def test_many_pulls_are_run_again_in_pieces_and_in_their_order() -> None:
    holder = Holder()
    for number in range(1000):
        holder.hold(str(number), 0)
    seen: set[int] = set()

    async def watch() -> None:
        while holder.service.count:
            seen.add(len(holder.resumed))
            await trio.lowlevel.checkpoint()

    holder.arrive(1, "x")
    assert 0 < len(holder.resumed) < 20
    async with trio.open_nursery() as nursery:
        nursery.start_soon(holder.service.run)
        await watch()
        nursery.cancel_scope.cancel()
    assert holder.names == [str(number) for number in range(1000)]
    assert len(seen) > 50, "another task sees them leave a few at a time"
    assert holder.service.held_bytes == 0


@pytest.mark.trio
async def test_a_pull_leaves_once_whatever_happens_while_it_waits_for_its_turn(autojump_clock: MockClock) -> None:
    holder = Holder()
    clients = [holder.hold(str(number), 0, wait_s=1.0) for number in range(100)]
    holder.arrive(1, "x")
    clients[50].is_closed = True
    holder.service.drop_client(clients[50])
    holder.service.release_group("g")
    holder.service.release_topic("orders")
    holder.service.release_all()
    holder.arrive(2, "x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(holder.service.run)
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert sorted(map(int, holder.names)) == [number for number in range(100) if number != 50]
    assert holder.abandoned == ["50"]
    assert holder.service.count == 0


@pytest.mark.trio
async def test_pulls_of_one_client_are_bounded() -> None:
    holder = Holder(client_memory_max=32 * HELD_BYTES)
    client = holder.hold("0", 0)
    for number in range(1, 32):
        holder.hold(str(number), 0, client=client)
    with pytest.raises(Refusal, match=r"long_polling\.client_memory_max") as refused:
        holder.hold("one more", 0, client=client)
    assert refused.value.error is ErrorCode.BUSY
    holder.hold("another's", 0)
    with pytest.raises(Refusal):
        holder.hold("long", 0, sql="a IN ('" + "x" * 8000 + "')")
    assert holder.service.count == 33
    holder.arrive(1, "x")
    holder.hold("later", 0, client=client)


@pytest.mark.trio
async def test_at_the_limit_of_all_clients_those_with_the_most_are_refused() -> None:
    holder = Holder(memory_max=40 * HELD_BYTES)
    greedy = holder.hold("0", 0)
    for number in range(1, 40):
        holder.hold(str(number), 0, client=greedy)
    with pytest.raises(Refusal, match=r"long_polling\.memory_max") as refused:
        holder.hold("one more", 0, client=greedy)
    assert refused.value.error is ErrorCode.BUSY
    modest = holder.hold("a", 0)
    holder.hold("b", 0, client=modest)
    assert holder.service.count == 42


@pytest.mark.trio
async def test_a_message_is_looked_at_for_a_bounded_number_of_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []
    monkeypatch.setattr(SqlFilter, "matches", lambda self, _: evaluated.append(self.parts))
    holder = Holder()
    for number in range(200):
        holder.hold("sql", 0, sql=f"amount = {number}" + " OR amount IS NULL" * 10)
        holder.hold("tag", 0, tags=f"t{number}")
    holder.arrive(100, records=arrived(*[{"amount": "-1"}] * 100))
    assert sum(evaluated) <= 8192
    assert holder.service._ready
    while holder.service._ready:
        holder.service.answer_ready()
    assert len(holder.resumed) > 200, "pulls beyond that run again and look themselves"


class CountedOffset(int):
    """An offset that counts how often one is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        CountedOffset.compared += 1
        return int(self) < int(other)


@pytest.mark.trio
async def test_pulls_of_a_crowded_queue_are_woken_without_reading_each() -> None:
    holder = Holder()
    for number in range(2000):
        holder.hold(str(number), CountedOffset(0))
    CountedOffset.compared = 0
    holder.arrive(1, "x")
    assert CountedOffset.compared < 10
    assert 0 < len(holder.resumed) < 20
    while holder.service._ready:
        holder.service.answer_ready()
    assert holder.names == [str(number) for number in range(2000)]
    assert holder.service.held_bytes == 0
    assert holder.service._waiting == {}


@pytest.mark.trio
async def test_pulls_of_a_crowded_queue_do_not_delay_those_of_others() -> None:
    holder = Holder()
    for number in range(1000):
        holder.hold(str(number), 0)
    holder.hold("other", 0, queue=("orders", 1))
    holder.arrive(1, "x")
    arrive(holder.service, 1, [0], queue=("orders", 1))
    for _ in range(4):
        holder.service.answer_ready()
    assert "other" in holder.names


@pytest.mark.trio
async def test_a_message_is_compared_with_a_bounded_number_of_different_filters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Any] = []
    may_have_one_for = Arrived.may_have_one_for

    def noted(self: Arrived, message_filter: Any) -> Any:
        looks.append(message_filter)
        return may_have_one_for(self, message_filter)

    monkeypatch.setattr(Arrived, "may_have_one_for", noted)
    holder = Holder()
    for number in range(2000):
        holder.hold(str(number), 0, tags=f"t{number}")
    holder.arrive(1, "t3")
    assert len(looks) <= 256
    while holder.service._ready:
        holder.service.answer_ready()
    assert {"3", "256", "1999"} <= set(holder.names)
    assert len(holder.resumed) == 2000 - 255
    assert holder.service.count == 255


@pytest.mark.trio
async def test_pulls_that_time_out_together_are_answered_in_pieces(autojump_clock: MockClock) -> None:
    holder = Holder()
    for number in range(1000):
        holder.hold(str(number), 0, wait_s=2.0)
    holder.hold("stays", 0, wait_s=9.0)
    seen: set[int] = set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(holder.service.run)
        await trio.sleep(1.9)
        assert holder.names == []
        await trio.sleep_until(holder.service._ticks[0] / 16)
        for _ in range(1000):
            seen.add(len(holder.resumed))
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert holder.names == [str(number) for number in range(1000)]
    assert len(seen) > 50


@pytest.mark.trio
async def test_an_ordinary_fleet_is_not_refused_and_one_client_is_bounded() -> None:
    holder = Holder()
    for number in range(1500):
        client = holder.hold("", 0, tags="TagA || TagB", queue=("orders", 0))
        for queue_id in range(1, 16):
            holder.hold("", 0, tags="TagA || TagB", client=client, queue=("orders", number * 16 + queue_id))
    assert holder.service.count == 24_000
    config = LongPollingConfig()
    assert holder.service.held_bytes / 24_000 * 16 * LimitsConfig().connections <= config.memory_max
    assert 3000 <= config.client_memory_max // HELD_BYTES <= 5000
