"""Held pulls: woken by messages for them, ended by deadlines, forgotten with their clients."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from reput_broker.config import LongPollingConfig
from reput_broker.long_polling import PullRequestHoldService
from reput_broker.store.dispatch import DispatchBatch, QueueRows
from reput_protocol.filters import MessageFilter, TagFilter
from reput_protocol.hashing import tags_code
from reput_protocol.properties import encode_properties
from reput_protocol.record import Record, encode_record
from reput_protocol.record_batch import scan_dispatch
from reput_protocol.sql import SqlFilter

QUEUE = ("orders", 0)


def arrive(
    service: PullRequestHoldService, end: int, codes: list[int], records: Sequence[bytes] = ()
) -> None:
    sizes = [len(record) for record in records] or [100] * len(codes)
    starts = [1000 + sum(sizes[:index]) for index in range(len(sizes))]
    rows = QueueRows(*QUEUE, end - len(codes), starts, sizes, codes, [0] * len(codes))
    data = b"".join(records)
    service.arriving(rows, DispatchBatch(1000, 1000 + sum(sizes), data, scan_dispatch(data), [rows]))


class Peer:
    is_closed = False


class Holder:
    """A hold service and a record of which pulls were run again, and when."""

    def __init__(self) -> None:
        self.service = PullRequestHoldService(LongPollingConfig())
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
    ) -> Any:
        client: Any = Peer()
        request: Any = SimpleNamespace(client=client, ext={"consumerGroup": group})
        message_filter: MessageFilter | None = None if tags is None else TagFilter.parse(tags)
        if sql is not None:
            message_filter = SqlFilter.parse(sql)
        self.service.hold(
            request,
            QUEUE,
            offset,
            message_filter,
            wait_s,
            lambda: self.resumed.append((name, trio.current_time())),
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
async def test_pulls_end_at_their_deadlines_and_no_later_than_the_longest_wait(
    autojump_clock: MockClock,
) -> None:
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
    assert [(name, round(at - started_at, 3)) for name, at in holder.resumed] == [
        ("short", 3.0),
        ("long", 25.0),
    ]


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
    assert len(holder.service._deadlines) < 200


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
async def test_when_it_cannot_be_told_what_arrived_the_pull_itself_looks() -> None:
    holder = Holder()
    holder.hold("damaged", 0, sql="amount > 100")
    (record,) = arrived({"amount": "7"})
    holder.arrive(1, records=[b"\xff" + record[1:]])
    assert holder.names == ["damaged"]
    holder.hold("many", 0, sql="amount > 100")
    holder.arrive(1000, records=arrived(*[{"amount": "7"}] * 257))
    assert holder.names == ["damaged", "many"]
