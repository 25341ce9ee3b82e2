"""Schedules in the broker, under a fake clock: each time is sent once, whatever happens to the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.schedule.messages import ScheduledMessages
from reput_broker.store.index import query
from reput_broker.tables import tables
from reput_broker.tables.tables import Schedules
from reput_protocol.codes import RequestCode
from reput_protocol.commands.schedule import (
    ChangeScheduleHeader,
    ChangeScheduleResult,
    ListSchedulesHeader,
    MissedTimes,
    ScheduleChange,
    ScheduleDefinition,
    ScheduleDescription,
    ScheduleList,
    ScheduleState,
)
from reput_protocol.errors import InvalidMessage
from reput_protocol.record.record import Record
from reput_protocol.wire.header import HeaderType
from support.broker_bench import T0, BrokerBench, broker_bench
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)

# T0 is 2023-11-14 22:13:20 UTC.
MINUTE_MS = 60_000
FIRST_MS = T0 + 40_000


def nightly(**fields: Any) -> ScheduleDefinition:
    values = {"name": "nightly", "when": "* * * * *", "topic": "T", "body": ScheduleDefinition.encode_body(b"go")}
    return ScheduleDefinition(**{**values, **fields})


async def put(bench: BrokerBench, definition: ScheduleDefinition) -> str | None:
    """Create a schedule; return why it was refused."""
    answer = await bench.client().ask(RequestCode.PUT_SCHEDULE, {}, definition.to_json())
    assert answer is not None
    return answer.remark if answer.code else None


async def change(bench: BrokerBench, how: ScheduleChange, name: str = "nightly") -> ChangeScheduleResult:
    ext = ChangeScheduleHeader("T", name, how).to_ext(HeaderType.JSON)
    answer = await bench.client().ask(RequestCode.CHANGE_SCHEDULE, ext)
    assert answer is not None
    assert answer.code == 0, answer.remark
    return ChangeScheduleResult.from_ext(answer.ext)


async def listed(bench: BrokerBench, **header: Any) -> list[ScheduleDescription]:
    ext = ListSchedulesHeader(**header).to_ext(HeaderType.JSON)
    answer = await bench.client().ask(RequestCode.LIST_SCHEDULES, ext)
    assert answer is not None
    return ScheduleList.from_json(answer.body).schedules


async def sent(bench: BrokerBench, queues: int = 1) -> list[Record]:
    return [record for queue_id in range(queues) for record in await bench.read("T", queue_id)]


async def times(bench: BrokerBench, queues: int = 1) -> list[int]:
    """The times for which messages were sent, in minutes after the first one."""
    found = [int(record.property_map()["__SCHEDULE_TIME"]) for record in await sent(bench, queues)]
    return [(time - FIRST_MS) // MINUTE_MS for time in found]


async def test_each_time_is_sent_when_it_comes(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        properties = {"colour": "red"}
        assert await put(bench, nightly(tag="t", keys=["k1", "k2"], properties=properties)) is None
        await bench.pass_time(39)
        assert await sent(bench) == []
        await trio.sleep(1.001)
        (record,) = await sent(bench)
        assert (record.body, record.tag, record.keys) == (b"go", "t", ("k1", "k2"))
        assert record.unique_key == f"SCHEDULE-nightly-{FIRST_MS}"
        found = record.property_map()
        assert (found["colour"], found["__SCHEDULE"]) == ("red", "nightly")
        assert record.store_timestamp_ms == FIRST_MS
        await trio.sleep(60)
        assert await times(bench) == [0, 1]
        (described,) = await listed(bench)
        assert (described.last_ms, described.next_ms) == (FIRST_MS + MINUTE_MS, FIRST_MS + 2 * MINUTE_MS)
        assert described.last_message_id == (await sent(bench))[1].offset_message_id
        assert (described.sent, described.times_missed) == (2, 0)
        assert described.definition == nightly(tag="t", keys=["k1", "k2"], properties=properties)


async def test_a_kill_after_any_message_repeats_and_skips_none(tmp_path: Path) -> None:
    """The table on the disk never has the last messages: only the log knows them."""
    async with broker_bench(tmp_path / "0") as bench:
        await bench.create_topic("T")
        assert await put(bench, nightly()) is None
    directory, at_ms = tmp_path / "0", T0 + 10_000
    for number in range(1, 5):
        async with broker_bench(directory, at_ms=at_ms) as bench:
            await trio.sleep(60)
            await bench.settled()
            directory = bench.killed(tmp_path / str(number))
            at_ms = bench.now_ms
        saved = Schedules(directory / "config" / "schedules.json")
        saved.load()
        assert saved.all["nightly"].last_ms <= FIRST_MS
    async with broker_bench(directory, at_ms=at_ms) as bench:
        await trio.sleep(1)
        assert await times(bench) == [0, 1, 2, 3]
        (described,) = await listed(bench)
        assert described.last_message_id == (await sent(bench))[-1].offset_message_id


@pytest.mark.parametrize(
    ("fields", "expected", "missed"),
    [
        ({}, [0, 7], 6),
        ({"missed": MissedTimes.ALL}, [*range(8)], 0),
        ({"missed": MissedTimes.ALL, "catch_up_s": 180.0}, [0, 5, 6, 7], 4),
        ({"catch_up_s": 10.0}, [0], 7),
        ({"catch_up_s": 30.0}, [0, 7], 6),
    ],
    ids=["latest", "all", "all within", "too late", "just in time"],
)
async def test_times_that_passed_while_the_broker_was_down(
    tmp_path: Path, fields: dict[str, Any], expected: list[int], missed: int
) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        assert await put(bench, nightly(**fields)) is None
        await trio.sleep(45)
    async with broker_bench(tmp_path, at_ms=FIRST_MS + 7 * MINUTE_MS + 30_000) as bench:
        await trio.sleep(1)
        assert await times(bench) == expected
        (described,) = await listed(bench)
        assert described.times_missed == missed
        assert described.next_ms == FIRST_MS + 8 * MINUTE_MS
        await trio.sleep(30)
        assert await times(bench) == [*expected, 8]


async def test_the_clock_of_the_next_master_may_be_behind(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        assert await put(bench, nightly()) is None
        await trio.sleep(45)
        image = bench.killed(tmp_path / "image")
    async with broker_bench(image, at_ms=T0 + 20_000) as bench:
        await trio.sleep(81)
        assert await times(bench) == [0, 1]


async def test_what_looks_like_its_message_is_no_message_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        assert await put(bench, nightly()) is None
        unique_id = f"SCHEDULE-nightly-{FIRST_MS}"
        for _ in range(3):
            await bench.client().send(
                "T", b"forged", {"UNIQ_KEY": unique_id, "__SCHEDULE": "nightly", "__SCHEDULE_TIME": "1"}
            )
        await bench.settled()
        image = bench.killed(tmp_path / "image")
    monkeypatch.setattr(query, "CANDIDATES_MAX", 2)
    async with broker_bench(image, at_ms=FIRST_MS + 1) as bench:
        await trio.sleep(1)
        assert await bench.bodies("T") == [*[b"forged"] * 3, b"go"]


async def test_a_long_outage_repeats_nothing_that_was_sent_before(tmp_path: Path) -> None:
    """Almost as many times as are looked for, and those that are still to come besides."""
    every = nightly(when="@every 1s", missed=MissedTimes.ALL)
    async with broker_bench(tmp_path / "0") as bench:
        await bench.create_topic("T")
        assert await put(bench, every) is None
        await trio.sleep(20.5)
        await bench.settled()
        image = bench.killed(tmp_path / "1")
    async with broker_bench(image, at_ms=T0 + 970_500) as bench:
        await trio.sleep(0.4)
        found = [int(record.property_map()["__SCHEDULE_TIME"]) for record in await sent(bench)]
        assert found == [T0 + 1000 * number for number in range(1, 971)]


async def test_a_schedule_in_doubt_does_not_hold_up_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_bench(tmp_path) as bench:
        for topic in ("T", "U"):
            await bench.create_topic(topic)
            assert await put(bench, nightly(name=topic, topic=topic)) is None
    find, unreadable = query.KeyLookup.find_by_unique_key, {"T"}

    def find_in_u(lookup: query.KeyLookup, topic: str, *arguments: Any, **named: Any) -> Any:
        if topic in unreadable:
            raise OSError(5, "Input/output error")
        return find(lookup, topic, *arguments, **named)

    monkeypatch.setattr(query.KeyLookup, "find_by_unique_key", find_in_u)
    async with broker_bench(tmp_path, at_ms=T0 + 10_000) as bench:
        await trio.sleep(91)
        assert [record.store_timestamp_ms for record in await bench.read("U")] == [FIRST_MS, FIRST_MS + MINUTE_MS]
        assert await sent(bench) == []
        in_doubt, other = await listed(bench)
        assert (in_doubt.state, in_doubt.since_ms) == (ScheduleState.LATE, FIRST_MS)
        assert "so it is unknown which times of 'T' were sent" in in_doubt.reason
        assert other.state is ScheduleState.ACTIVE
        unreadable.clear()
        await trio.sleep(1.1)
        assert await times(bench) == [1]
        assert (await listed(bench))[0].state is ScheduleState.ACTIVE


async def test_what_a_table_has_that_is_no_schedule_here_harms_nothing_and_can_be_deleted(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        for name in ("nightly", "long"):
            assert await put(bench, nightly(name=name)) is None
    path = tmp_path / "config" / "schedules.json"
    members = json.loads(path.read_text())
    members["scheduleTable"]["long"]["properties"] = {"p": "x" * 31_743}
    members["scheduleTable"]["odd"] = {"when": 5}
    path.write_text(json.dumps(members))
    async with broker_bench(tmp_path, at_ms=T0 + 10_000) as bench:
        await trio.sleep(31)
        assert await times(bench) == [0]
        long, normal = await listed(bench)
        assert (long.definition.name, long.next_ms, long.last_ms) == ("long", None, None)
        assert (long.state, normal.state) == (ScheduleState.FAILING, ScheduleState.ACTIVE)
        assert long.reason.startswith("the broker does not understand it: ")
        assert normal.next_ms == FIRST_MS + MINUTE_MS
        await change(bench, ScheduleChange.DELETE, "long")
        assert [one.definition.name for one in await listed(bench)] == ["nightly"]
        assert json.loads(path.read_text())["scheduleTable"]["odd"] == {"when": 5}
        assert await put(bench, nightly(name="odd")) is None
        assert json.loads(path.read_text())["scheduleTable"]["odd"]["when"] == "* * * * *"


async def test_a_message_that_cannot_be_made_is_a_missed_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise InvalidMessage("no")

    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        assert await put(bench, nightly()) is None
        monkeypatch.setattr(ScheduledMessages, "record", refuse)
        await trio.sleep(41)
        (described,) = await listed(bench)
        assert (described.sent, described.times_missed) == (0, 1)
        monkeypatch.undo()
        await trio.sleep(60)
        assert await times(bench) == [1]


async def test_of_two_that_are_created_at_once_one_is_refused(tmp_path: Path) -> None:
    """Also if their topic is created, during which other requests are served."""
    async with broker_bench(tmp_path) as bench:
        outcomes: list[str | None] = []

        async def create(tag: str) -> None:
            outcomes.append(await put(bench, nightly(topic="N", tag=tag)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, "a")
            nursery.start_soon(create, "b")
        assert outcomes.count(None) == 1
        assert any("another schedule 'nightly' exists" in (text or "") for text in outcomes)


async def test_a_schedule_too_many_creates_no_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_SCHEDULES_MAX", 0)
    async with broker_bench(tmp_path) as bench:
        assert "which is the most" in (await put(bench, nightly(topic="N")) or "")
        assert bench.tables.topics.get("N") is None


async def test_pause_resume_run_and_delete(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        assert await put(bench, nightly(missed=MissedTimes.ALL)) is None
        await trio.sleep(41)
        await change(bench, ScheduleChange.PAUSE)
        await trio.sleep(120)
        (described,) = await listed(bench)
        assert (described.is_paused, described.next_ms, described.last_ms) == (True, None, FIRST_MS)
        result = await change(bench, ScheduleChange.RUN)
        (_, by_hand) = await sent(bench)
        assert result.msg_id == by_hand.offset_message_id
        assert "__SCHEDULE_TIME" not in by_hand.property_map()
        await change(bench, ScheduleChange.RESUME)
        await trio.sleep(60)
        bodies = await sent(bench)
        assert len(bodies) == 3, "nothing is sent for the times of the pause"
        assert bodies[-1].unique_key == f"SCHEDULE-nightly-{FIRST_MS + 3 * MINUTE_MS}"
        await change(bench, ScheduleChange.DELETE)
        await trio.sleep(60)
        assert (len(await sent(bench)), await listed(bench)) == (3, [])


async def test_a_paused_schedule_and_its_last_time_survive_a_start(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        assert await put(bench, nightly()) is None
        await trio.sleep(41)
        await bench.settled()
        await change(bench, ScheduleChange.PAUSE)
    async with broker_bench(tmp_path, at_ms=FIRST_MS + 5 * MINUTE_MS) as bench:
        await trio.sleep(61)
        (described,) = await listed(bench)
        assert (described.is_paused, described.last_ms, len(await sent(bench))) == (True, FIRST_MS, 1)


async def test_replacing_begins_anew_and_the_same_again_changes_nothing(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        assert await put(bench, nightly()) is None
        created = (await listed(bench))[0].created_ms
        await trio.sleep(10)
        assert await put(bench, nightly()) is None
        assert (await listed(bench))[0].created_ms == created
        refused = await put(bench, nightly(when="@every 7s"))
        assert refused is not None
        assert "another schedule 'nightly' exists" in refused
        assert await put(bench, nightly(when="@every 7s", replaces=True)) is None
        await trio.sleep(15)
        stored = [record.store_timestamp_ms - T0 for record in await sent(bench)]
        assert stored == [17_000, 24_000]


async def test_the_queue_is_that_of_the_ordering_key_or_of_the_priority_or_the_next(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T", queues=4)
        kinds: dict[str, dict[str, Any]] = {"a": {"ordering_key": "k"}, "b": {"priority": 9}, "c": {}}
        for name, fields in kinds.items():
            assert await put(bench, nightly(name=name, when="@every 10s", **fields)) is None
        await trio.sleep(41)
        queues: dict[str, list[int]] = {"a": [], "b": [], "c": []}
        for record in await sent(bench, 4):
            queues[record.property_map()["__SCHEDULE"]].append(record.queue_id)
        assert queues == {"a": [ord("k") % 4] * 4, "b": [3] * 4, "c": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"when": "0 25 * * *"}, "has the hour '25' at position 3"),
        ({"when": "@every 10"}, "the unit is missing"),
        ({"when": "* " * 200}, "and at most 256"),
        ({"time_zone": "Mars/Olympus"}, "time zone 'Mars/Olympus' is unknown"),
        ({"name": "a b"}, "cannot be that of a schedule"),
        ({"catch_up_s": -1.0}, "catch_up is -1 s"),
        ({"body": "?"}, "is not Base64"),
        ({"body": ScheduleDefinition.encode_body(bytes(65_537))}, "at most 65536"),
        ({"keys": ["a b"]}, "holds a space"),
        ({"properties": {"__SCHEDULE": "x"}}, "the broker sets the property __SCHEDULE"),
        ({"ordering_key": "a", "priority": 1}, "an ordering key or a priority"),
        ({"topic": "rmq_sys_wheel_timer"}, "belongs to the broker"),
        ({"priority": -1}, "priority -1"),
        ({"topic": "%RETRY%g"}, "belongs to the broker or to a group"),
        ({"topic": "%DLQ%g"}, "belongs to the broker or to a group"),
        ({"properties": {"p": "x" * 31_743}}, "but at most 31743 fit"),
        ({"properties": {"p": "x" * 31_680}}, "but at most 31743 fit"),  # with what the broker adds
        ({"properties": {"REPLY_TO_CLIENT": "c"}}, "that of a request or a reply"),
        ({"properties": {"RETRY_TOPIC": "U"}}, "is reserved for the broker"),
    ],
)
async def test_what_cannot_be_a_schedule_is_refused_with_the_place(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        refused = await put(bench, nightly(**fields))
        assert refused is not None
        assert reason in refused
        assert await listed(bench) == []


async def test_without_an_index_there_are_no_schedules(tmp_path: Path) -> None:
    async with broker_bench(tmp_path, store={"index": False}) as bench:
        await bench.create_topic("T")
        refused = await put(bench, nightly())
        assert refused is not None
        assert "set store.index" in refused


async def test_a_deleted_topic_has_its_times_missed(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        assert await put(bench, nightly()) is None
        await bench.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        await trio.sleep(41)
        (described,) = await listed(bench, topic="T")
        assert (described.sent, described.times_missed, described.last_ms) == (0, 1, None)
        await trio.sleep(31)  # the table is saved
        await bench.create_topic("T")
    async with broker_bench(tmp_path, at_ms=T0 + 75_000) as bench:
        await trio.sleep(26)
        assert await times(bench) == [1], "a time that was missed stays so"


async def test_a_full_disk_delays_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        assert await put(bench, nightly(missed=MissedTimes.ALL)) is None
        store = bench.broker.store
        monkeypatch.setattr(store, "put_record", lambda _: _disk_full())
        await trio.sleep(101)
        assert await sent(bench) == []
        monkeypatch.undo()
        await trio.sleep(2)
        assert await times(bench) == [0, 1]


def _disk_full() -> Any:
    from reput_broker.store.base.results import PutResult, PutStatus

    return PutResult(PutStatus.DISK_FULL)


async def test_the_list_names_topics_and_names(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await bench.create_topic("U")
        for name, topic in (("b", "T"), ("a", "T"), ("c", "U")):
            assert await put(bench, nightly(name=name, topic=topic)) is None
        assert [one.definition.name for one in await listed(bench)] == ["a", "b", "c"]
        assert [one.definition.name for one in await listed(bench, topic="T")] == ["a", "b"]
        assert [one.definition.name for one in await listed(bench, name="c")] == ["c"]


class Someone:
    """A user with these rights on topics."""

    name = "someone"
    is_admin = False

    def __init__(self, *rights: tuple[str, str]) -> None:
        self.rights = rights

    def permits(self, right: str, kind: str, name: str) -> bool:
        return kind == "topic" and (right, name) in self.rights

    def may_write_something(self) -> bool:
        return True


async def test_a_user_needs_more_than_the_right_to_administer_the_topic(tmp_path: Path) -> None:
    """That right is checked before the handlers, by the rows of the requests."""
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await bench.create_topic("U")
        assert await put(bench, nightly()) is None
        client = bench.client()

        async def ask(code: RequestCode, ext: Any, body: bytes = b"") -> str | None:
            answer = await client.ask(code, ext, body)
            assert answer is not None
            return answer.remark if answer.code else None

        client.principal = Someone(("admin", "T"), ("admin", "U"), ("write", "U"))
        refused = await ask(RequestCode.PUT_SCHEDULE, {}, nightly(name="mine").to_json())
        assert "lacks the right 'write' on topic 'T'" in (refused or "")
        run = ChangeScheduleHeader("T", "nightly", ScheduleChange.RUN).to_ext(HeaderType.JSON)
        assert "lacks the right 'write' on topic 'T'" in (await ask(RequestCode.CHANGE_SCHEDULE, run) or "")
        client.principal = Someone(("admin", "U"), ("write", "U"))
        refused = await ask(RequestCode.PUT_SCHEDULE, {}, nightly(topic="U", replaces=True).to_json())
        assert "another schedule 'nightly' exists; choose another name" in (refused or "")
        delete = ChangeScheduleHeader("U", "nightly", ScheduleChange.DELETE).to_ext(HeaderType.JSON)
        refused = await ask(RequestCode.CHANGE_SCHEDULE, delete)
        assert "topic 'U' has no schedule 'nightly'" in (refused or "")
        answer = await client.ask(RequestCode.LIST_SCHEDULES, {})
        assert answer is not None
        assert ScheduleList.from_json(answer.body).schedules == []
        assert len(await listed(bench)) == 1


async def test_the_state_of_a_schedule_that_misses_its_times(tmp_path: Path) -> None:
    """It is missed until a message is sent, by hand or at the next time; a paused one is not."""
    for by_hand in (True, False):
        directory = tmp_path / str(by_hand)
        async with broker_bench(directory) as bench:
            await bench.create_topic("T")
            assert await put(bench, nightly(catch_up_s=1.0)) is None
            assert [one.state for one in await listed(bench)] == [ScheduleState.ACTIVE]
        async with broker_bench(directory, at_ms=FIRST_MS + 2 * MINUTE_MS + 10_000) as bench:
            await trio.sleep(1)
            (missed,) = await listed(bench)
            assert (missed.state, missed.since_ms) == (ScheduleState.MISSED, FIRST_MS)
            assert missed.reason == "no broker could send within its catch-up of 1 s"
            if by_hand:
                await change(bench, ScheduleChange.RUN)
            else:
                await trio.sleep(50)
            assert [one.state for one in await listed(bench)] == [ScheduleState.ACTIVE]
            await change(bench, ScheduleChange.PAUSE)
            assert [one.state for one in await listed(bench)] == [ScheduleState.PAUSED]


async def test_the_state_of_a_schedule_without_its_topic(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        assert await put(bench, nightly()) is None
        await bench.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        (before,) = await listed(bench)
        assert (before.state, before.since_ms) == (ScheduleState.FAILING, None), "before it has missed a time"
        await trio.sleep(101)
        (failing,) = await listed(bench)
        assert (failing.state, failing.since_ms) == (ScheduleState.FAILING, FIRST_MS)
        assert failing.reason == "its topic T does not exist"
        await bench.create_topic("T")
        await trio.sleep(60)
        assert [one.state for one in await listed(bench)] == [ScheduleState.ACTIVE]
