"""What producers are answered when a message breaks a limit, RocketMQ's code and a remark that begins as RocketMQ's, or
when its topic is deleted before it is stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from reput_broker.tables.table_saver import TableSaver
from reput_protocol.codes import AckLevel, RequestCode, ResponseCode
from reput_protocol.commands.send import PutMessageHeader
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.wire.header import HeaderType
from support.broker_bench import broker_bench
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)


async def test_oversized_bodies_and_properties_are_illegal(tmp_path: Path) -> None:
    async with broker_bench(tmp_path, store={"message_size_max": "2KiB"}) as bench:
        client = bench.client(HeaderType.JSON)
        for body, properties in ((b"x" * 2049, {}), (b"", {"large": "x" * 32_760}), (b"", many(5000))):
            answer = await client.send("orders", body, properties)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "the message is illegal" in (answer.remark or "")
        assert (await client.send("orders", b"x" * 2048, many(3900))).code == 0


@pytest.mark.parametrize(
    "code", [RequestCode.PUT_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_REPLY_MESSAGE_V2]
)
async def test_a_topic_deleted_while_a_send_creates_it_does_not_exist(
    code: RequestCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_bench(tmp_path) as bench:
        client, topics = bench.client(HeaderType.MSGPACK), bench.tables.topics
        if code == RequestCode.PUT_MESSAGE:
            ext = PutMessageHeader("orders", 0, 1, AckLevel.PAGE_CACHE).to_ext(client.header_type)
            body = bytes(encode_put_block([Message("orders", b"x")], "orders", 0, bench.now_ms))
        else:
            ext, body = client.send_header("orders", {}).to_ext_v2(client.header_type), b"x"

        async def deletes(_: TableSaver) -> None:
            topics.delete("orders")

        with monkeypatch.context() as patched:
            patched.setattr(TableSaver, "save", deletes)
            answer = await client.ask(code, ext, body)
        assert answer is not None
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST, answer.remark
        assert bench.broker.store.max_offset_in_queue("orders", 0) == 0


def many(count: int) -> dict[str, str]:
    """That many small properties."""
    return {f"k{number}": "v" for number in range(count)}


async def test_puts_are_refused_while_one_waits_too_long_for_a_file_and_that_one_is_stored(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("orders")
        lock = bench.parts.core.puts.lock
        async with trio.open_nursery() as nursery, lock.held():
            nursery.start_soon(bench.client().send, "orders", b"waits")
            await bench.pass_time(0.9)
            nursery.start_soon(bench.client().send, "orders", b"waits")
            await bench.pass_time(0.2)
            refused = await bench.client().send("orders", b"refused")
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "[PC_SYNCHRONIZED]broker busy" in (refused.remark or "")
        assert "waited 1.1 s for a file" in (refused.remark or "")
        assert (await bench.client().send("orders", b"later")).code == 0
        assert await bench.bodies("orders") == [b"waits", b"waits", b"later"]
