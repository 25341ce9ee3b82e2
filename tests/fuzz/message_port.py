"""Frames at the message port of a broker in this process, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import trio

from fuzz.frame_inputs import frame_input
from fuzz.mutations import in_parts
from fuzz.outcome import Memory, Outcome, defects_in_the_log
from reput_broker import Broker, BrokerConfig
from reput_protocol.codes import RequestCode
from reput_protocol.errors import ProtocolError
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import Header, HeaderType

_BATCH = 1_000
_AT_ONCE = 32
_ENDS_WITHIN_S = 60.0
_STORE = {"commit_log_file_size": 16 << 20, "index_slots": 1000, "index_entries": 4000, "flush": "async"}


def fuzz_frames(seed: int, cases: int) -> Outcome:
    """Open `cases` connections. Each ends, none is a defect to the broker, others are answered, memory stays."""
    outcome = Outcome()
    with defects_in_the_log(outcome), TemporaryDirectory(prefix="reput-fuzz-") as directory:
        trio.run(_fuzz, Random(seed), cases, outcome, Path(directory))
    return outcome


async def _fuzz(rng: Random, cases: int, outcome: Outcome, directory: Path) -> None:
    config = BrokerConfig.model_validate(
        {
            "data_dir": directory / "data",
            "port": 0,
            "store": _STORE | {"disk_clean_forcibly_ratio": 1.0, "disk_warning_ratio": 1.0},
            "long_polling": {"max_wait": "100ms"},
        }
    )
    async with Broker(config) as broker:
        before: Memory | None = None
        while outcome.cases < cases and not outcome.enough:
            batch = min(_BATCH, cases - outcome.cases)
            inputs = iter([frame_input(rng) for _ in range(batch)])
            async with trio.open_nursery() as nursery:
                for _ in range(_AT_ONCE):
                    nursery.start_soon(_send, broker.address, inputs, Random(rng.random()), outcome)
            outcome.cases += batch
            if not await _answers(broker.address):
                outcome.violations.append(f"the broker does not answer after {outcome.cases:,} inputs")
                return
            before = before or Memory.now()
        assert before is not None
        outcome.note_memory(before)


async def _connect(address: str) -> trio.SocketStream:
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def _send(address: str, inputs: Iterator[bytes], rng: Random, outcome: Outcome) -> None:
    for data in inputs:
        reader = FrameReader()
        try:
            with trio.fail_after(_ENDS_WITHIN_S):
                async with await _connect(address) as stream:
                    with suppress(trio.BrokenResourceError):  # the broker need not read on after an error
                        for part in in_parts(rng, data):
                            await stream.send_all(part)
                        await stream.send_eof()
                    with suppress(trio.BrokenResourceError):
                        async for answer in stream:
                            for frame in reader.receive_data(bytes(answer)):
                                outcome.answers[str(decode_header(frame.header_type, frame.header).code)] += 1
        except trio.TooSlowError:
            outcome.violations.append(f"{data!r}: the connection is open after {_ENDS_WITHIN_S:g} s")
        except ProtocolError as error:
            outcome.violations.append(f"{data!r} is answered with frames that are none: {error}")
        if reader.failure is not None:
            outcome.violations.append(f"{data!r} is answered with frames that are none: {reader.failure}")
        if outcome.enough:
            return


async def _answers(address: str) -> bool:
    """Ask as an ordinary client does."""
    asked = encode_frame(Header(RequestCode.GET_BROKER_RUNTIME_INFO, 1), HeaderType.JSON)
    with trio.move_on_after(_ENDS_WITHIN_S):
        async with await _connect(address) as stream:
            await stream.send_all(asked)
            reader = FrameReader()
            async for data in stream:
                for frame in reader.receive_data(bytes(data)):
                    return decode_header(frame.header_type, frame.header).code == 0
    return False
