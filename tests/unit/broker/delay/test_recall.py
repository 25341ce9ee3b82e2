"""Recall of messages with a deliver time, by the handle that the send returned."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput_broker.remoting.request import Response
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.delay import RecallHandle
from reput_protocol.commands.send import SendMessageResult
from support.broker_bench import BrokerBench, broker_bench
from support.tasks import run_by_the_clock

by_the_clock = pytest.mark.trio(run=run_by_the_clock)


async def sent(bench: BrokerBench, body: bytes, **properties: str) -> str | None:
    """Send a message; return its handle."""
    answer = await bench.client().send("orders", body, {"UNIQ_KEY": f"ID-{body.decode()}", **properties})
    assert answer.code == 0, answer.remark
    return SendMessageResult.from_ext(answer.ext).recall_handle


async def recall(bench: BrokerBench, handle: str | None, topic: str = "orders") -> Response:
    assert handle is not None
    ext = {"topic": topic, "recallHandle": handle, "producerGroup": "PG"}
    answer = await bench.client().ask(RequestCode.RECALL_MESSAGE, ext)
    assert answer is not None
    return answer


def test_a_handle_is_rocketmqs() -> None:
    """`HandleV1.buildHandle("orders", "broker-a", "1700000001", "ID-1")`."""
    text = "djEgb3JkZXJzIGJyb2tlci1hIDE3MDAwMDAwMDEgSUQtMQ=="
    assert str(RecallHandle("orders", "broker-a", 1_700_000_001, "ID-1")) == text
    assert RecallHandle.parse(text) == ("orders", "broker-a", 1_700_000_001, "ID-1")


@pytest.mark.parametrize("text", ["", "%", "djE=", "djIgYSBiIDEgYw==", "djEgYSBiIHggYw==", "\u00e4"])
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a recall handle"):
        RecallHandle.parse(text)


@by_the_clock
async def test_a_recalled_message_is_not_delivered_and_its_neighbours_are(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders")
        handle = await sent(bench, b"gone", TIMER_DELAY_MS="5000")
        await sent(bench, b"stays", TIMER_DELAY_MS="5000", KEYS="ID-gone")
        assert await sent(bench, b"now") is None, "it does not wait"
        assert await sent(bench, b"level", DELAY="2") is None, "RocketMQ recalls none of a level"
        answer = await recall(bench, handle)
        assert (answer.code, answer.ext["msgId"]) == (0, "ID-gone")
        assert (await recall(bench, handle)).code == 0, "a repetition"
        await bench.pass_time(6)
        assert sorted(await bench.bodies("orders")) == [b"level", b"now", b"stays"]


@by_the_clock
async def test_too_late_and_of_another_broker_or_topic(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders")
        await bench.create_topic("others")
        handle = await sent(bench, b"m", TIMER_DELAY_MS="2000")
        assert (await recall(bench, handle, "others")).code == ResponseCode.ILLEGAL_OPERATION
        assert (await recall(bench, handle, "absent")).code == ResponseCode.TOPIC_NOT_EXIST
        elsewhere = RecallHandle("orders", "broker-b", bench.now_ms + 1000, "ID-m")
        assert (await recall(bench, str(elsewhere))).code == ResponseCode.ILLEGAL_OPERATION
        await bench.pass_time(2.1)
        answer = await recall(bench, handle)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert "does not wait any more" in (answer.remark or "")
        never_stored = RecallHandle("orders", "broker-a", bench.now_ms + 1000, "ID-never")
        answer = await recall(bench, str(never_stored))
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert "is not stored here" in (answer.remark or "")
