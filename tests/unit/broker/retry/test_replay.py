"""Replays of dead letters: each is sent once, by every way, over kills; and only to where it is proven to be from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.access.model import Account, User
from reput_broker.store.base.results import PutResult
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.dead_letters import (
    LetterPlace,
    LetterPlaces,
    QueryReplaysHeader,
    Replay,
    ReplayedLetter,
    ReplayHeader,
    ReplayOutcome,
    ReplayResult,
    Replays,
)
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.properties import encode_properties
from reput_protocol.record.record import Record
from reput_protocol.rights import rule_of
from support.broker_bench import BenchClient, BrokerBench, broker_bench
from support.store_samples import examine, named
from support.tasks import run_by_the_clock

GROUP, DLQ = "billing", "%DLQ%billing"
SENT, BEFORE = ReplayOutcome.SENT, ReplayOutcome.SENT_BEFORE

pytestmark = pytest.mark.trio(run=run_by_the_clock)


async def give_up(bench: BrokerBench, bodies: Sequence[bytes], topic: str = "orders", **properties: str) -> None:
    """Send messages that the group gives up on at once."""
    bench.tables.groups.put(SubscriptionGroupConfig(GROUP, retry_max_times=0))
    await bench.create_topic(topic)
    client = bench.client()
    for body in bodies:
        assert (await client.send(topic, body, properties)).code == 0
        assert (await client.send_back((await bench.read(topic))[-1], GROUP)).code == 0
    await bench.settled()


async def replay(
    bench: BrokerBench, *offsets: int | tuple[int, int], client: BenchClient | None = None, **fields: Any
) -> list[ReplayedLetter]:
    places = [LetterPlace(*(one if isinstance(one, tuple) else (one,))) for one in offsets]
    asking = client or bench.client()
    ext = ReplayHeader(GROUP, **fields).to_ext(asking.header_type)
    response = await asking.ask(RequestCode.REPLAY_DEAD_LETTERS, ext, LetterPlaces(places).to_json())
    assert response is not None
    assert response.code == 0, response.remark
    return ReplayResult.from_json(response.body).letters


async def replays(bench: BrokerBench) -> tuple[int, int, list[Replay]]:
    client = bench.client()
    ext = QueryReplaysHeader(GROUP, 0, 1000).to_ext(client.header_type)
    response = await client.ask(RequestCode.QUERY_REPLAYS, ext)
    assert response is not None
    assert response.code == 0, response.remark
    found = Replays.from_json(response.body)
    return found.kept, found.replayed, found.replays


def outcomes(letters: Sequence[ReplayedLetter]) -> list[ReplayOutcome]:
    return [letter.outcome for letter in letters]


async def test_a_letter_is_sent_once_wherever_it_goes(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await give_up(bench, [b"1", b"2", b"3"], TAGS="t", KEYS="k", colour="red")
        await bench.create_topic("again")
        assert await replays(bench) == (3, 0, [])
        assert outcomes(await replay(bench, 0, 1, dry_run=True)) == [SENT, SENT]
        (first,) = await replay(bench, 1)
        assert bench.broker.store.flush_behind_bytes == 0, "it is on disk when this is answered"
        assert (first.outcome, first.topic) == (SENT, "orders")
        bodies = [record.body for record in await bench.read("orders")]
        assert bodies == [b"1", b"2", b"3", b"2"], "and nothing by the dry run"
        second = await replay(bench, 0, 1, 1, 2, topic="again")
        assert outcomes(second) == [SENT, BEFORE, SENT], "those that are named twice count once"
        assert second[1].replay == first.replay, "says when, and to where"
        assert outcomes(await replay(bench, 2, 1, 0)) == [BEFORE] * 3
        kept, replayed, found = await replays(bench)
        assert (kept, replayed) == (3, 3)
        assert [(one.letter_offset, one.topic, one.queue_offset) for one in found] == [
            (0, "again", 0), (1, "orders", 3), (2, "again", 1),
        ]  # fmt: skip
        (copy,) = (await bench.read("orders"))[3:]
        properties = copy.property_map()
        assert (copy.tag, copy.keys, properties["colour"], copy.reconsume_times) == ("t", ("k",), "red", 0)
        assert not {"RETRY_TOPIC", "DLQ_REASON", "ORIGIN_MESSAGE_ID"} & properties.keys()
        assert found[1].offset_message_id == copy.offset_message_id
        assert outcomes(await replay(bench, 1, topic="again", again=True)) == [SENT], "when it is asked for"
        assert (await replays(bench))[2][1].topic == "again", "the latest replay is shown"


async def test_requests_at_once_send_each_letter_once(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await give_up(bench, [b"%d" % number for number in range(8)])
        await bench.create_topic("again")
        found: list[ReplayedLetter] = []

        async def ask(topic: str | None, *offsets: int) -> None:
            found.extend(await replay(bench, *offsets, topic=topic))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, None, *range(8))
            nursery.start_soon(ask, "again", *reversed(range(8)))
            nursery.start_soon(ask, None, 3, 5)
        assert outcomes(found).count(SENT) == 8
        sent = (await bench.bodies("orders"))[8:] + await bench.bodies("again")
        assert sorted(sent) == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("ends", ["stopped", "killed"])
async def test_after_a_restart_the_log_says_what_was_replayed(tmp_path: Path, ends: str) -> None:
    """Killed as soon as a message is stored: before its sync, its dispatch and the answer."""
    images: list[Path] = []
    async with broker_bench(tmp_path / "s") as bench:
        await give_up(bench, [b"1", b"2", b"3"])
        await bench.create_topic("again")
        store = bench.broker.store
        put_record = store.put_record

        def put_and_die(record: Record) -> PutResult:
            result = put_record(record)
            images.append(bench.killed(tmp_path / f"image{len(images)}"))
            return result

        store.put_record = put_and_die
        assert outcomes(await replay(bench, 0, 2)) == [SENT, SENT]
    assert len(images) == 2
    directories = {"stopped": [(tmp_path / "s", 2)], "killed": [(images[0], 1), (images[1], 2)]}
    for directory, sent in directories[ends]:
        async with broker_bench(directory) as bench:
            assert (await replays(bench))[:2] == (3, sent)
            assert outcomes(await replay(bench, 0, 1, 2, topic="again")).count(SENT) == 3 - sent
            bodies = (await bench.bodies("orders"))[3:] + await bench.bodies("again")
            assert sorted(bodies) == [b"1", b"2", b"3"]
        assert named(examine(directory)) == set()


async def test_what_no_broker_has_put_there_goes_nowhere_by_itself(tmp_path: Path) -> None:
    """As in a log of an earlier version, or of RocketMQ: now a client can write none of these properties there."""
    async with broker_bench(tmp_path / "s") as bench:
        await give_up(bench, [b"mine"])
        await bench.create_topic("payments")
        await bench.create_topic("own")
        client = bench.client()
        assert (await client.send(DLQ, b"pay eve", {"RETRY_TOPIC": "payments", "DLQ_REASON": "consumer"})).code == 0
        (original,) = await bench.read("orders")
        forged = {"RETRY_TOPIC": "payments", "ORIGIN_MESSAGE_ID": original.offset_message_id}
        for name in ("RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"):
            claim = encode_properties({name: "payments", "ORIGIN_MESSAGE_ID": forged["ORIGIN_MESSAGE_ID"]})
            bench.broker.store.put_record(Record(DLQ, b"pay eve", properties=claim))
        await bench.settled()
        found = await replay(bench, 1, 2, 3)
        assert outcomes(found) == [ReplayOutcome.UNPROVEN] * 3
        assert {letter.topic for letter in found} == {None}
        assert "its origin is not proven" in (found[0].reason or "")
        assert await bench.read("payments") == []
        assert outcomes(await replay(bench, 1, topic="own")) == [SENT], "where the operator says"


async def test_a_letter_of_rocketmq_is_proven_by_its_original(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await give_up(bench, [b"mine"], KEYS="k")
        (original,) = await bench.read("orders")
        (letter,) = await bench.read(DLQ)
        properties = letter.property_map()
        del properties["DLQ_REASON"]
        for body in (original.body, b"another"):
            bench.broker.store.put_record(Record(DLQ, body, properties=encode_properties(properties)))
        await bench.settled()
        assert outcomes(await replay(bench, 1, 2)) == [SENT, ReplayOutcome.UNPROVEN]


async def test_the_user_needs_the_right_to_send_there(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await give_up(bench, [b"1"], topic="orders")
        await give_up(bench, [b"2"], topic="secret")
        client = bench.client()
        rules = rule_of("topic:orders", ["write"]), rule_of(f"group:{GROUP}", ["read"])
        client.principal = Account(User("alice", "a-secret-of-16-characters"), rules)
        found = await replay(bench, 0, 1, client=client)
        assert outcomes(found) == [SENT, ReplayOutcome.NO_PERMISSION]
        assert (found[1].reason or "").startswith("the right write on topic secret is missing; ")
        assert await bench.bodies("secret") == [b"2"]
        client.principal = Account(User("bob", "a-secret-of-16-characters"), (rule_of(f"group:{GROUP}", ["describe"]),))
        figures = QueryReplaysHeader(GROUP).to_ext(client.header_type)
        response = await client.ask(RequestCode.QUERY_REPLAYS, figures)
        assert response is not None
        assert Replays.from_json(response.body).replayed == 1
        which = QueryReplaysHeader(GROUP, 0, 2).to_ext(client.header_type)
        response = await client.ask(RequestCode.QUERY_REPLAYS, which)
        assert response is not None
        assert response.code == ResponseCode.NO_PERMISSION, "where they went needs more"


async def test_letters_and_topics_that_are_gone(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await give_up(bench, [b"1"], topic="gone")
        await give_up(bench, [b"2"])
        (one, two) = await bench.read(DLQ)
        response = await bench.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"})
        assert response is not None
        assert response.code == 0
        places = (0, one.physical_offset), (1, one.physical_offset), (7, two.physical_offset)
        found = await replay(bench, *places)
        assert outcomes(found) == [ReplayOutcome.NO_TOPIC, ReplayOutcome.GONE, ReplayOutcome.GONE]
        assert bench.broker.store.max_offset_in_queue("gone", 0) == 0, "it is not created"
        assert outcomes(await replay(bench, -1, 1 << 62)) == [ReplayOutcome.GONE] * 2
        client = bench.client()
        ext = ReplayHeader(GROUP, "nowhere").to_ext(client.header_type)
        response = await client.ask(RequestCode.REPLAY_DEAD_LETTERS, ext, LetterPlaces([LetterPlace(1)]).to_json())
        assert response is not None
        assert response.code == ResponseCode.TOPIC_NOT_EXIST
        assert outcomes(await replay(bench, 1)) == [SENT]
        response = await bench.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": DLQ})
        await give_up(bench, [b"3"])
        assert await replays(bench) == (1, 0, []), "the new topic begins at offset 0 again"
        assert outcomes(await replay(bench, 0)) == [SENT]


async def test_a_copy_of_a_replay_is_no_replay(tmp_path: Path) -> None:
    """The message of a replay fails too: its retries and its own dead letter keep its properties."""
    async with broker_bench(tmp_path / "s") as bench:
        await give_up(bench, [b"1"])
        await replay(bench, 0)
        client = bench.client()
        bench.tables.groups.put(SubscriptionGroupConfig(GROUP, retry_max_times=1))
        assert (await client.send_back((await bench.read("orders"))[-1], GROUP)).code == 0
        await bench.pass_time(11)
        (retry,) = await bench.read("%RETRY%billing")
        assert retry.property_map()["REPUT_REPLAY_OF"].endswith(DLQ)
        assert (await client.send_back(retry, GROUP)).code == 0
        await bench.settled()
        assert (await replays(bench))[:2] == (2, 1)
    async with broker_bench(tmp_path / "s") as bench:
        assert (await replays(bench))[:2] == (2, 1), "also by the index"
        assert outcomes(await replay(bench, 0, 1)) == [BEFORE, SENT]


async def test_without_an_index_nothing_is_replayed(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", store={"index": False}) as bench:
        await give_up(bench, [b"1"])
        client = bench.client()
        ext = ReplayHeader(GROUP).to_ext(client.header_type)
        response = await client.ask(RequestCode.REPLAY_DEAD_LETTERS, ext, LetterPlaces([LetterPlace(0)]).to_json())
        assert response is not None
        assert "set store.index" in (response.remark or "")
        assert await bench.bodies("orders") == [b"1"]
