"""`run` ends on SIGTERM and Ctrl-C, with every API."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from reput_client import StopRunning
from support.faces import Face, scenario
from support.fakes import FakeBroker

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
MEMBER: dict[str, Any] = {"group": "g", "topic": "t", "on_failure": StopRunning()}
"""Of a consumer; an assertion that fails in a handler ends the run."""


@pytest.mark.parametrize("concurrency", [1, 3])
@SIGNALS
@scenario
async def test_run_ends_with_its_progress_committed(
    face: Face, broker: FakeBroker, number: int, concurrency: int
) -> None:
    await face.fill(broker.address, 100)
    seen: list[bytes] = []
    before = signal.getsignal(number)
    async with face.Consumer(broker.address, commit_interval_s=60.0, **MEMBER) as consumer:

        async def handle(message: Any) -> None:
            seen.append(message.body)
            if len(seen) == 3:
                assert signal.getsignal(number) is not before, "otherwise it would end the test run"
                signal.raise_signal(number)
            if len(seen) >= 3:
                await face.until(lambda: consumer.stopped)

        await consumer.run(handle, concurrency=concurrency)
        assert consumer.stopped
        assert signal.getsignal(number) is before
        assert 3 <= len(seen) < 100
        assert broker.committed["g", "t", 0] == len(seen)


@SIGNALS
@scenario
async def test_the_programs_own_handler_stays(face: Face, broker: FakeBroker, number: int) -> None:
    await face.fill(broker.address, 5)
    calls: list[int] = []

    def own(came: int, _: object) -> None:
        calls.append(came)

    before = signal.signal(number, own)
    try:
        async with face.Consumer(broker.address, **MEMBER) as consumer:

            async def handle(message: Any) -> None:
                assert signal.getsignal(number) is own
                if message.body == b"1":
                    signal.raise_signal(number)
                if message.body == b"4":
                    consumer.stop()

            await consumer.run(handle)
            assert calls == [number]
    finally:
        signal.signal(number, before)


@SIGNALS
@scenario
async def test_signals_may_be_left_alone(face: Face, broker: FakeBroker, number: int) -> None:
    await face.fill(broker.address, 1)
    before = signal.getsignal(number)
    async with face.Consumer(broker.address, **MEMBER) as consumer:

        async def handle(_: Any) -> None:
            assert signal.getsignal(number) is before
            consumer.stop()

        await consumer.run(handle, handle_signals=False)


@SIGNALS
@scenario
async def test_a_second_signal_has_its_usual_effect(face: Face, broker: FakeBroker, number: int) -> None:
    await face.fill(broker.address, 1)
    before = signal.getsignal(number)
    restored: list[bool] = []
    async with face.Consumer(broker.address, **MEMBER) as consumer:

        async def handle(_: Any) -> None:
            signal.raise_signal(number)
            await face.until(lambda: consumer.stopped)
            restored.append(signal.getsignal(number) is before)

        await consumer.run(handle)
    assert restored == [True]


def test_other_threads_handle_no_signals(broker: FakeBroker) -> None:
    face = Face("blocking")
    before = signal.getsignal(signal.SIGTERM)
    seen: list[bool] = []

    async def scenario() -> None:
        await face.fill(broker.address, 1)
        async with face.Consumer(broker.address, **MEMBER) as consumer:

            async def handle(_: Any) -> None:
                seen.append(signal.getsignal(signal.SIGTERM) is before)
                consumer.stop()

            async def work() -> None:
                assert threading.current_thread() is not threading.main_thread()
                await consumer.run(handle)

            await face.together(work)

    face.run(scenario)
    assert seen == [True]


@SIGNALS
def test_a_signal_stops_all_consumers_of_the_program(broker: FakeBroker, number: int) -> None:
    for face in map(Face, ("trio", "asyncio")):
        before = signal.getsignal(number)
        stopped: list[str] = []

        async def scenario(face: Face = face, before: object = before, stopped: list[str] = stopped) -> None:
            running: set[str] = set()

            async def consume(group: str) -> None:
                async with face.Consumer(broker.address, group=group, topic="t") as consumer:
                    running.add(group)
                    await consumer.run(lambda _: face.sleep(0.0))
                    stopped.append(group)

            async def interrupt() -> None:
                await face.until(lambda: len(running) == 3)
                await face.sleep(0.01)
                assert signal.getsignal(number) is not before, "otherwise it would end the test run"
                signal.raise_signal(number)

            await face.together(interrupt, *(lambda g=g: consume(g) for g in ("g1", "g2", "g3")))

        face.run(scenario)
        assert sorted(stopped) == ["g1", "g2", "g3"]
        assert signal.getsignal(number) is before
