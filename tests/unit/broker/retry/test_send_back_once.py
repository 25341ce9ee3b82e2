"""A message is sent back once, even if answers are lost, and again after it was delivered again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from reput_broker.retry import send_back_deduplication
from reput_broker.retry.send_back_deduplication import SendBackDeduplication
from reput_protocol.codes import RequestCode
from reput_protocol.record.record import Record
from reput_protocol.wire.header import HeaderType
from support.broker_bench import BenchClient, BrokerBench, broker_bench
from support.tasks import run_by_the_clock

RETRY, DLQ = "%RETRY%billing", "%DLQ%billing"
RESENT = {"RETRY_TOPIC": "orders", "DELAY": "3", "UNIQ_KEY": "id-1"}

pytestmark = pytest.mark.trio(run=run_by_the_clock)


async def sent(bench: BrokerBench, client: BenchClient, body: bytes = b"o-1", unique_id: str = "id-1") -> Record:
    await bench.create_topic("orders")
    response = await client.send("orders", body, {"UNIQ_KEY": unique_id})
    assert response.code == 0, response.remark
    return (await bench.read("orders"))[-1]


async def resend(client: BenchClient, key: str | None, delay: str | None = "3", **fields: int) -> None:
    properties = dict(RESENT)
    if delay is None:
        del properties["DELAY"]
    if key is not None:
        properties["SEND_BACK_ID"] = key
    response = await client.send(RETRY, b"o-1", properties, **{"reconsume_times": 1, **fields})
    assert response.code == 0, response.remark


def counts(bench: BrokerBench) -> tuple[int, int]:
    found = bench.broker.counters.retry
    return found.retries["billing", "orders"], found.dead_letters["billing", "orders"]


@pytest.mark.parametrize("level", [3, -1])
@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_repeated_request_is_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int, in_memory: bool
) -> None:
    if not in_memory:
        monkeypatch.setattr(SendBackDeduplication, "remember", lambda *_: None)
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client(HeaderType.MSGPACK)
        record = await sent(bench, client)
        for repeated in (None, True, True):
            response = await client.send_back(record, "billing", level, send_back_id="a1", is_repeated=repeated)
            assert response.code == 0, response.remark
        await resend(client, f"{record.physical_offset}-a1", "3" if level > 0 else None, max_reconsume_times=0)
        await trio.sleep(30)
        assert (len(await bench.read(RETRY)), len(await bench.read(DLQ))) == ((1, 0) if level > 0 else (0, 1))
        assert counts(bench) == ((1, 0) if level > 0 else (0, 1))
        assert (await client.send_back(record, "other", level, send_back_id="a1")).code == 0
        await trio.sleep(30)
        assert len(await bench.read("%RETRY%other")) + len(await bench.read("%DLQ%other")) == 1


@pytest.mark.parametrize("level", [3, -1])
@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_a_repetition_is_known_after_a_restart(tmp_path: Path, level: int, is_confirmed: bool) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client(HeaderType.MSGPACK)
        record = await sent(bench, client)
        await client.send_back(record, "billing", level, send_back_id="a1")
        await bench.settled()
        image, now_ms = bench.killed(tmp_path / "image"), bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        store = bench.broker.store
        store.confirm_offset = store.max_physical_offset if is_confirmed else record.physical_offset
        client = bench.client(HeaderType.MSGPACK)
        response = await client.send_back(record, "billing", level, send_back_id="a1", is_repeated=True)
        store.confirm_offset = None
        assert response.code == 0, response.remark
        await resend(client, f"{record.physical_offset}-a1", "3" if level > 0 else None, max_reconsume_times=0)
        await trio.sleep(30)
        assert (len(await bench.read(RETRY)), len(await bench.read(DLQ))) == ((1, 0) if level > 0 else (0, 1))


async def test_a_late_repetition_is_the_same_one_and_another_handing_out_is_not(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client(HeaderType.MSGPACK)
        record = await sent(bench, client)
        await client.send_back(record, "billing", 1, send_back_id="a1")
        await trio.sleep(2)
        assert len(await bench.read(RETRY)) == 1
        await client.send_back(record, "billing", 1, send_back_id="a1", is_repeated=True)
        await trio.sleep(2)
        assert len(await bench.read(RETRY)) == 1
        for request_id in ("b2", None):  # the group's offset was reset, and it failed once more
            await client.send_back(record, "billing", 1, send_back_id=request_id)
            await trio.sleep(2)
        assert len(await bench.read(RETRY)) == 3


async def test_a_message_that_waits_for_its_retry_is_not_sent_back_again(tmp_path: Path) -> None:
    """Whoever asks: its group gets it, and has one message more for each of these otherwise."""
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        record = await sent(bench, client)
        for _ in range(3):
            await client.send_back(record, "billing", 3)
        await trio.sleep(30)
        assert len(await bench.read(RETRY)) == 1
        retry = (await bench.read(RETRY))[0]
        await client.send_back(retry, "billing", 1)
        await trio.sleep(2)
        assert [record.reconsume_times for record in await bench.read(RETRY)] == [1, 2]


@pytest.mark.parametrize("first_by_36", [True, False])
async def test_sends_of_rocketmqs_client_to_the_retry_topic_are_recognised_by_unique_id(
    tmp_path: Path, first_by_36: bool
) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        record = await sent(bench, client)
        other = await sent(bench, client, b"o-2", "id-2")

        async def by_36() -> None:
            await client.send_back(record, "billing")

        async def by_310() -> None:
            await resend(client, None)

        steps: list[Callable[[], object]] = [by_36, by_310] if first_by_36 else [by_310, by_36]
        for step in steps:
            await step()  # type: ignore[misc]
        await client.send_back(other, "billing")
        await trio.sleep(30)
        assert await bench.bodies(RETRY) == [b"o-1", b"o-2"]
        await resend(client, None)
        await trio.sleep(30)
        assert await bench.bodies(RETRY) == [b"o-1", b"o-2", b"o-1"], "it had come, and failed again"


async def test_a_deleted_retry_topic_takes_what_waited_with_it(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        record = await sent(bench, client)
        await client.send_back(record, "billing", -1)
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": DLQ})
        await client.send_back(record, "billing", -1)
        assert len(await bench.read(DLQ)) == 1


async def test_an_id_that_is_none_is_refused(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client(HeaderType.MSGPACK)
        record = await sent(bench, client)
        for request_id in ("x" * 65, "a b", "a\x02", "\u00e4"):
            response = await client.send_back(record, "billing", send_back_id=request_id)
            assert "sendBackId" in (response.remark or "")


async def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_back_deduplication, "_REMEMBERED_MAX", 5)
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        known = bench.parts.retry.deduplicated._sent_back
        for number in range(20):
            record = await sent(bench, client, b"%d" % number, f"id-{number}")
            await client.send_back(record, "billing")
        await bench.settled()
        await client.send_back(await sent(bench, client, b"last", "last"), "billing")
        assert len(known._by_offset) <= 6
        assert len(known._by_unique_id) <= 6
