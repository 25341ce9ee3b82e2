"""The Python in README.md and docs/ runs as written, against a broker with its defaults."""

from __future__ import annotations

import ast
import asyncio
import inspect
import runpy
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from faststream.specification import AsyncAPI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import reput_client
from docs.blocks import RUN
from reput_broker.background import BackgroundBroker
from reput_client import Consumer, Message, PullConsumer, TransactionState, blocking
from support.tls_files import make_tls_files

PUBLIC = {name: getattr(reput_client, name) for name in dir(reput_client)}
TOPICS = ("orders", "prices", "reminders")


TEXTS: dict[tuple[str, int], str] = {}
"""Each Python block by page and number."""
for _block in RUN:
    if _block.language == "python" and _block.title is None:
        _number = sum(page == _block.page for page, _ in TEXTS)
        TEXTS[_block.page, _number] = _block.text


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    made = new_reput_broker()
    with blocking.Admin(made.address) as admin, blocking.Producer(made.address) as producer:
        for topic in TOPICS:
            admin.create_topic(topic, queues=1)
        producer.send(Message("orders", b"...", tag="paid", properties={"customer": "c-1"}))
    return made


WITH_NAMES = {
    ("README.md", 1),
    ("README.md", 3),
    *(("docs/client.md", number) for number in range(9)),
    ("docs/delays.md", 0),
    ("docs/delays.md", 1),
    ("docs/schedules.md", 0),
    *(("docs/frameworks.md", number) for number in range(4)),
    ("docs/pop.md", 2),
    *((f"docs/{name}.md", n) for name in ("pop", "request-reply", "tracing", "transactions") for n in (0, 1)),
}
"""Blocks that are no whole programs, or have no end: each has its own test below."""


class Ended(BaseException):
    """Ends a snippet that would never end."""


def ending() -> None:
    raise Ended


@asynccontextmanager
async def transaction() -> AsyncIterator[Any]:
    async def execute(*_arguments: object) -> None: ...

    yield SimpleNamespace(execute=execute)


async def fetchrow(*_arguments: object) -> int:
    return 1


async def some_orders() -> AsyncIterator[Any]:
    yield SimpleNamespace(body=b"42")


def compiled(key: tuple[str, int], address: str) -> Any:
    # The default log file has 1 GiB.
    small = 'port=0, http_port=None, store={"commit_log_file_size": "16MiB", "index": False}'
    text = TEXTS[key].replace("127.0.0.1:10911", address).replace("port=0)", small + ")").replace("100_000", "1_000")
    return compile(text, f"{key[0]} #{key[1]}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def run(key: tuple[str, int], address: str, **names: Any) -> dict[str, Any]:
    """Run a snippet, which imports what it uses besides `names`."""
    found = dict(names)
    with suppress(Ended):
        running = eval(compiled(key, address), found)
        if inspect.isawaitable(running):
            with trio.fail_after(10):
                await running
    return found


def test_readme_with_an_event_loop(broker: BackgroundBroker) -> None:
    shown: list[tuple[object, ...]] = []

    def show(*values: object) -> None:
        shown.append(values)
        if values[-1] == b"...":
            raise KeyboardInterrupt

    exec(compiled(("README.md", 1), broker.address), {"print": show})
    assert [str(values[-1]) for values in shown] == ["flushed", str(b"...")]


@pytest.mark.parametrize("key", [key for key in TEXTS if key not in WITH_NAMES], ids=str)
def test_programs(broker: BackgroundBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Any) -> None:
    def show(*values: object) -> None:
        if isinstance(values[-1], bytes):  # the body of the only message
            raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    with suppress(KeyboardInterrupt):
        exec(compiled(key, broker.address), {"print": show})


def test_readme_with_a_broker_of_its_own(tmp_path: Path) -> None:
    trio.run(lambda: run(("README.md", 3), "127.0.0.1:1", path=tmp_path / "data"))


def test_values(broker: BackgroundBroker) -> None:
    """The message that is no order does not hold up the one that is."""
    shown: list[object] = []

    def show(number: object) -> None:
        shown.append(number)
        ending()

    trio.run(partial(run, ("docs/client.md", 2), broker.address, print=show))
    assert shown == [7]


def test_acknowledging(broker: BackgroundBroker) -> None:
    async def main() -> None:
        async with Consumer(broker.address, group="g", topic="orders") as consumer:
            await run(("docs/client.md", 4), broker.address, consumer=consumer)
            assert {queue.topic: at for queue, at in consumer.positions().items()}["orders"] == 1

    trio.run(main)


def test_seeking(broker: BackgroundBroker) -> None:
    async def main() -> None:
        async with Consumer(broker.address, group="g", topic="orders") as consumer:
            (queue,) = (queue for queue in consumer.assignment if queue.topic == "orders")
            await run(("docs/client.md", 5), broker.address, consumer=consumer, queue=queue)
            message = await consumer.receive(5.0)
            assert message is not None
            assert message.body == b"..."

    trio.run(main)


@pytest.mark.parametrize("number", [0, 1, 3, 6, 7, 8])
def test_client(broker: BackgroundBroker, number: int) -> None:
    async def main() -> None:
        async with PullConsumer(broker.address, group="g") as consumer:
            names = {
                **PUBLIC,
                "suppress": suppress,
                "consumer": consumer,
                "orders": some_orders(),
                "note": lambda _posted: None,
            }
            await run(("docs/client.md", number), broker.address, print=lambda *_: ending(), **names)

    trio.run(main)


def test_delays(broker: BackgroundBroker) -> None:
    trio.run(run, ("docs/delays.md", 0), broker.address)
    with blocking.Admin(broker.address) as admin:
        assert len(admin.list_delayed(topic="reminders")) == 3


def test_a_time_to_live(broker: BackgroundBroker) -> None:
    with blocking.Admin(broker.address) as admin:
        admin.create_topic("quotes", queues=1)
    trio.run(run, ("docs/delays.md", 1), broker.address)
    with blocking.PullConsumer(broker.address, group="g") as consumer:
        found = consumer.pull("quotes", 0, 0).messages  # the third one is delayed
    assert len([message for message in found if message.expires_at_ms is not None]) == 2


def test_schedules(broker: BackgroundBroker) -> None:
    shown: list[tuple[object, ...]] = []
    trio.run(lambda: run(("docs/schedules.md", 0), broker.address, print=lambda *values: shown.append(values)))
    ((name, next_time, last_time),) = shown
    assert (name, next_time is None, last_time) == ("heartbeat", False, None)


def test_pop(broker: BackgroundBroker) -> None:
    handled: list[bytes] = []

    async def main() -> None:
        found = await run(("docs/pop.md", 0), broker.address)
        assert found["message"].is_acknowledged
        with blocking.Producer(broker.address) as producer:
            producer.send(Message("orders", b"next"))

        async def handle(message: Any) -> None:
            handled.append(message.body)
            ending()

        with pytest.raises(BaseExceptionGroup):
            await run(("docs/pop.md", 1), broker.address, handle=handle)

    trio.run(main)
    assert handled == [b"next"]


def test_priorities(broker: BackgroundBroker) -> None:
    with blocking.Admin(broker.address) as admin:
        admin.create_topic("jobs", queues=4, message_type="PRIORITY")
    trio.run(lambda: run(("docs/pop.md", 2), broker.address))
    with blocking.PopConsumer(broker.address, group="g", topic="jobs") as consumer:
        (message,) = consumer.receive(max_messages=1, wait_s=10.0)
    assert (message.body, message.priority, message.queue_id) == (b"now", 3, 3)


def test_request_and_reply(broker: BackgroundBroker) -> None:
    shown: list[object] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            def show(body: object, *_more: object) -> None:
                shown.append(body)
                nursery.cancel_scope.cancel()

            answering = run(("docs/request-reply.md", 1), broker.address)
            nursery.start_soon(_awaited, answering)
            await run(("docs/request-reply.md", 0), broker.address, print=show)

    trio.run(main)
    assert shown == [b"19.90"]


async def _awaited(work: Awaitable[object]) -> None:
    await work


def test_transactions(broker: BackgroundBroker) -> None:
    async def main() -> None:
        database = SimpleNamespace(transaction=transaction, fetchrow=fetchrow)
        own = await run(("docs/transactions.md", 1), broker.address, database=database)
        names = {name: own[name] for name in ("pay", "was_paid")}
        found = await run(("docs/transactions.md", 0), broker.address, **names)
        assert found["receipt"].state is TransactionState.COMMIT

    trio.run(main)


def test_tracing(broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()

    def set_for_now(provider: TracerProvider) -> None:
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)

    monkeypatch.setattr(trace, "set_tracer_provider", set_for_now)

    async def handle(message: object) -> None:
        ending()

    async def main() -> None:
        own = await run(("docs/tracing.md", 0), broker.address)
        own["provider"].add_span_processor(SimpleSpanProcessor(exporter))
        try:
            async with Consumer(broker.address, group="billing", topic="orders") as consumer:
                await run(("docs/tracing.md", 1), broker.address, consumer=consumer, handle=handle, otel=own["otel"])
        finally:
            own["otel"].uninstrument()
            own["provider"].shutdown()

    trio.run(main)
    assert [span.name for span in exporter.get_finished_spans()] == ["process orders"]


def test_faststream(tmp_path: Path) -> None:
    # In a file, because FastStream reads the source of tests.
    program = tmp_path / "app.py"
    program.write_text(TEXTS["docs/frameworks.md", 0] + TEXTS["docs/frameworks.md", 2])
    asyncio.run(runpy.run_path(str(program))["test_an_order_is_billed"]())


def test_faststream_with_a_user(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    own: dict[str, Any] = {}
    exec(TEXTS["docs/frameworks.md", 1].replace("/etc/reput/ca.pem", str(files.ca)), own)
    description = AsyncAPI(own["broker"]).to_specification().to_jsonable()
    assert list(description["components"]["securitySchemes"]) == ["user-password"]


def test_fastapi(broker: BackgroundBroker) -> None:
    shown: list[bytes] = []

    async def body() -> bytes:
        return b"42"

    async def main() -> None:
        own: dict[str, Any] = {"print": shown.append}
        exec(compiled(("docs/frameworks.md", 3), broker.address), own)
        async with own["app"].router.lifespan_context(own["app"]) as state:
            await own["take_order"](SimpleNamespace(state=SimpleNamespace(**state), body=body))
            while b"42" not in shown:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 10.0))
