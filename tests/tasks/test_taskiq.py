"""taskiq's receiver and brokers on a real broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

pytest.importorskip("taskiq")

from taskiq import SimpleRetryMiddleware, TaskiqResult
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver

import reput_client
from reput_client.blocking import Admin
from reput_client.errors import ClientClosed
from reput_client.tasks.taskiq import ReputBroker, ReputResultBackend


def broker_of(address: str, name: str, **options: Any) -> ReputBroker:
    """A broker with a queue and a group of the test's own."""
    queue = name.replace(".", "-")
    broker = ReputBroker(address, queues=[queue], group=queue, **options)
    broker.with_result_backend(ReputResultBackend(address))
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))
    return broker


@asynccontextmanager
async def working(broker: ReputBroker) -> AsyncIterator[None]:
    """Let a receiver do the tasks of a broker."""
    finish = asyncio.Event()
    receiver = Receiver(broker, max_async_tasks=10, run_startup=False)
    task = asyncio.create_task(receiver.listen(finish))
    try:
        yield
    finally:
        finish.set()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def ending(broker: ReputBroker) -> AsyncIterator[asyncio.Event]:
    """Let a receiver do the tasks of a broker, and end by itself when the event is set."""
    finish = asyncio.Event()
    task = asyncio.create_task(Receiver(broker, max_async_tasks=10, run_startup=False).listen(finish))
    yield finish
    await task


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario on asyncio, which is what taskiq has."""
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_results_retries_and_delays(address: str, name: str) -> None:
    async def scenario() -> None:
        broker = broker_of(address, name)
        attempts: list[int] = []

        @broker.task
        async def add(x: int, y: int) -> int:
            return x + y

        @broker.task(retry_on_error=True)
        async def third_time() -> int:
            attempts.append(1)
            if len(attempts) < 3:
                raise ValueError("not yet")
            return len(attempts)

        @broker.task
        async def wrong() -> None:
            raise KeyError("no such order")

        await broker.startup()
        async with working(broker):
            sent = await add.kiq(1, 2)
            assert (await sent.wait_result(timeout=20)).return_value == 3
            assert (await (await third_time.kiq()).wait_result(timeout=20)).return_value == 3
            failed = await (await wrong.kiq()).wait_result(timeout=20)
            assert failed.is_err
            began_at = time.monotonic()
            later = await add.kicker().with_labels(delay=1.5).kiq(2, 2)
            assert (await later.wait_result(timeout=20)).return_value == 4
            assert time.monotonic() - began_at > 1.4
            await asyncio.sleep(0.3)
        await broker.shutdown()
        again = broker_of(address, name)
        await again.startup()
        listening = again.listen()
        with pytest.raises(asyncio.TimeoutError):  # all are acknowledged
            await asyncio.wait_for(anext(listening), 1.0)
        await again.shutdown()

    run(scenario)


def test_a_broker_that_is_not_started_says_so(address: str, name: str) -> None:
    async def scenario() -> None:
        broker = broker_of(address, name)

        @broker.task
        async def note(text: str) -> None:
            raise AssertionError(text)

        with pytest.raises(SendTaskError) as caught:
            await note.kiq("a")
        assert isinstance(caught.value.__cause__, ClientClosed)
        assert "await broker.startup()" in str(caught.value.__cause__)
        with pytest.raises(ClientClosed, match="not started"):
            await broker.result_backend.is_result_ready("1")

    run(scenario)


def test_higher_priorities_come_first(address: str, name: str) -> None:
    async def scenario() -> None:
        broker = broker_of(address, name)
        done: list[str] = []

        @broker.task
        async def note(text: str) -> None:
            done.append(text)

        await broker.startup()
        for text, priority in (("low", 0), ("high", 9), ("middle", 5)):
            await note.kicker().with_labels(priority=priority).kiq(text)
        async with working(broker):
            while len(done) < 3:
                await asyncio.sleep(0.02)
        await broker.shutdown()
        assert done == ["high", "middle", "low"]

    run(scenario)


def test_what_a_worker_has_not_acknowledged_goes_to_another_without_an_attempt(address: str, name: str) -> None:
    async def scenario() -> None:
        for _ in range(20):
            broker = broker_of(address, name)
            await broker.startup()
            if _ == 0:

                @broker.task(task_name="note")
                async def note(text: str) -> None: ...

                await note.kiq("x")
            listening = broker.listen()
            received = await asyncio.wait_for(anext(listening), 10)
            assert b'"note"' in received.data
            await listening.aclose()
            await broker.shutdown()

    run(scenario)
    with Admin(address) as admin:
        assert not [topic for topic in admin.list_topics() if topic.startswith(f"%DLQ%{name.replace('.', '-')}")]


def test_a_worker_that_ends_finishes_its_tasks_and_no_other_does_them(address: str, name: str) -> None:
    async def scenario() -> None:
        begun: list[str] = []
        go_on = asyncio.Event()

        def program() -> ReputBroker:
            broker = broker_of(address, name, invisible_s=4.0)

            @broker.task(task_name="slow")
            async def slow(text: str) -> None:
                begun.append(text)
                await go_on.wait()

            return broker

        first, second = program(), program()
        await first.startup()
        await second.startup()
        async with ending(first) as finish:
            slow = first.find_task("slow")
            assert slow is not None
            await slow.kiq("x")
            while not begun:
                await asyncio.sleep(0.02)
            finish.set()
            async with working(second):
                await asyncio.sleep(1.5)
                go_on.set()
        await first.shutdown()
        async with working(second):
            await asyncio.sleep(1.0)
        await second.shutdown()
        assert begun == ["x"]

    run(scenario)


def test_no_more_tasks_are_received_than_at_once(address: str, name: str) -> None:
    async def scenario() -> None:
        broker = broker_of(address, name, at_once=2)
        await broker.startup()

        @broker.task
        async def note(number: int) -> None: ...

        for number in range(4):
            await note.kiq(number)
        listening = broker.listen()
        received = [await asyncio.wait_for(anext(listening), 10) for _ in range(2)]
        third = asyncio.ensure_future(anext(listening))
        await asyncio.sleep(0.5)
        assert not third.done()
        await received[0].ack()  # type: ignore[misc]
        await asyncio.wait_for(third, 10)
        await listening.aclose()
        await broker.shutdown()

    run(scenario)


def test_names_that_no_tag_can_be_and_a_topic_that_was_deleted(address: str, name: str) -> None:
    async def scenario() -> None:
        broker = broker_of(address, name)
        broker.with_id_generator(lambda: "task 1")

        @broker.task(task_name="note || this")
        async def note(text: str) -> str:
            return text

        await broker.startup()
        async with reput_client.Admin(address) as admin:
            await note.kiq("deleted with the topic")
            await admin.delete_topic(name.replace(".", "-"))
            sent = await note.kiq("x")
            config = await admin.topic_config(name.replace(".", "-"))
            assert (config.write_queue_nums, config.message_type) == (10, "PRIORITY")
            async with working(broker):
                assert (await sent.wait_result(timeout=20)).return_value == "x"
            results = ReputResultBackend[str](address, topic=f"{name.replace('.', '-')}-results")
            await results.startup()
            await admin.delete_topic(f"{name.replace('.', '-')}-results")
            assert not await results.is_result_ready("1")
            await results.set_result("1", TaskiqResult(is_err=False, return_value="y", execution_time=0.1))
            assert (await results.get_result("1")).return_value == "y"
            await results.shutdown()
        await broker.shutdown()

    run(scenario)
