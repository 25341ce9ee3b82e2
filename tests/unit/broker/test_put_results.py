"""What RocketMQ's producers are answered when a message breaks a limit: RocketMQ's code, and a remark that begins as
RocketMQ's."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_bench import broker_bench
from reput_protocol.codes import ResponseCode
from reput_protocol.wire.header import HeaderType
from tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)


async def test_oversized_bodies_and_properties_are_illegal(tmp_path: Path) -> None:
    async with broker_bench(tmp_path, store={"message_size_max": "2KiB"}) as bench:
        client = bench.client(HeaderType.JSON)
        for body, properties in (
            (b"x" * 2049, {}),
            (b"", {"large": "x" * 32_760}),
            (b"", many(5000)),
        ):
            answer = await client.send("orders", body, properties)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "the message is illegal" in (answer.remark or "")
        assert (await client.send("orders", b"x" * 2048, many(3900))).code == 0


def many(count: int) -> dict[str, str]:
    """That many small properties."""
    return {f"k{number}": "v" for number in range(count)}
