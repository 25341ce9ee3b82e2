"""Numbers in headers that are none, or none that anything can have: every field of every request, as each header type
brings it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import trio
import trio.testing
from msgspec import structs

from reput_broker.remoting.request import Response
from reput_protocol.codes import RequestCode
from reput_protocol.wire.frames import decode_header, encode_header
from reput_protocol.wire.header import Header, HeaderType, Value
from support.broker_bench import BenchClient, broker_bench
from support.typed_requests import typed_headers

ODD: dict[HeaderType, list[Value]] = {
    HeaderType.MSGPACK: [math.inf, -math.inf, math.nan, 1e300, 1.5, True, None, 2**63 - 1, 2**64 - 1, -(2**63), -1],
    HeaderType.JSON: ["inf", "NaN", "1e999", "9" * 400, "-1", "true", "0x1", "1_000", "\u0663", "", str(2**63)],
    HeaderType.BINARY: ["inf", "1e999", "9" * 400, "-1", "\u0663", ""],
}  # fmt: skip


def fields() -> tuple[dict[str, Value], list[str]]:
    """A plausible value for every field that any request has, and the names of those that are numbers."""
    values: dict[str, Value] = {}
    numbers: set[str] = set()
    for kind in typed_headers():
        for field in structs.fields(kind):
            if field.type in (str, str | None):
                values.setdefault(field.encode_name, "T")
            else:
                numbers.add(field.encode_name)
                values[field.encode_name] = "0"
    return values, sorted(numbers)


async def answer_of(client: BenchClient, code: int, ext: dict[str, Value]) -> Response | None:
    header = decode_header(client.header_type, encode_header(Header(0, 0, ext=ext), client.header_type))
    with trio.move_on_after(1):
        return await client.ask(code, header.ext)
    return None


@pytest.mark.trio
@pytest.mark.usefixtures("by_the_clock")
@pytest.mark.parametrize("kind", list(ODD), ids=lambda kind: kind.name.lower())
async def test_a_number_that_cannot_be_is_refused_as_such(
    tmp_path: Path, kind: HeaderType, capsys: pytest.CaptureFixture[str]
) -> None:
    plausible, numbers = fields()
    assert "sysFlag" in numbers
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        client = bench.client(kind)
        for code in sorted(bench.broker.handlers):
            for odd in ODD[kind]:
                response = await answer_of(client, code, {**plausible, **dict.fromkeys(numbers, odd)})
                failed = response is not None and "the broker failed" in (response.remark or "")
                assert not failed, (code, odd, capsys.readouterr().err[-3000:])
        for name in numbers:
            for odd in ODD[kind]:
                for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
                    response = await answer_of(client, code, {**plausible, name: odd})
                    assert response is None or "the broker failed" not in (response.remark or "")
