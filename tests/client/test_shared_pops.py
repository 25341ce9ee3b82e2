"""Many tasks that wait for messages of one POP consumer: a notification wakes one of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from reput_client import PopConsumer
from reput_protocol.wire.header import Header
from support.fake_pops import POP, Pops
from support.fakes import Answer, FakeBroker
from support.waiting import until

WAITING = 50


class CountedPops(Pops):
    """Counts the pops."""

    def __init__(self, broker: FakeBroker) -> None:
        super().__init__(broker)
        self.asked = 0
        broker.behave(POP, self.counted)

    def counted(self, header: Header, body: memoryview) -> Answer:
        self.asked += 1
        return self.pop(header, body)


@pytest.fixture
def pops() -> Iterator[CountedPops]:
    with FakeBroker(queues=1) as broker:
        yield CountedPops(broker)


def test_each_message_is_one_pop_however_many_wait(pops: CountedPops) -> None:
    async def work() -> None:
        async with PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:
            tasks = [asyncio.ensure_future(consumer.receive(1, wait_s=60.0)) for _ in range(WAITING)]
            await until(lambda: pops.asked >= WAITING)
            before, started_at = pops.asked, time.monotonic()
            pops.waiting = [b"%d" % n for n in range(5)]
            await until(lambda: sum(task.done() for task in tasks) == 5)
            # Besides, one pop after each notification, which the scripted broker holds for 50 ms.
            limit = 5 + 2 + (time.monotonic() - started_at) / 0.04
            assert pops.asked - before <= limit
            got = sorted(task.result()[0].body for task in tasks if task.done())
            assert got == [b"%d" % n for n in range(5)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(work())


def test_a_wait_that_is_cancelled_when_it_was_woken_wakes_the_next(
    pops: CountedPops, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:
            fetcher, pump = consumer._fetcher, consumer._session.pump
            tasks = [asyncio.ensure_future(consumer.receive(1, wait_s=60.0)) for _ in range(2)]
            await until(lambda: pops.asked >= 2 and len(fetcher._waits) == 2)
            first, second = fetcher._waits
            woken: list[object] = []
            monkeypatch.setattr(pump, "wake", woken.append)
            fetcher.wake_one()
            assert woken == [first]
            first.ready = True
            tasks[0].cancel()
            await asyncio.gather(tasks[0], return_exceptions=True)
            assert second in woken[1:]
            tasks[1].cancel()
            await asyncio.gather(tasks[1], return_exceptions=True)

    asyncio.run(work())
