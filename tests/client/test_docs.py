"""The Python in README.md and docs/ runs as written, against a broker with its defaults."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

import reput_client
from reput_broker.background import BackgroundBroker
from reput_client import Message, Producer, PullConsumer, TransactionState, blocking

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "docs/embedding.md": "2",  # a user's test, run by tests/plugin
    "docs/pipeline.md": "0 1",  # needs Spark
}
"""Snippets, by number, that other tests run."""
PUBLIC = {name: getattr(reput_client, name) for name in reput_client.__all__}
TOPICS = ("orders", "prices", "reminders")


def snippets() -> Iterator[tuple[str, int, str]]:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        name = str(path.relative_to(ROOT))
        for number, text in enumerate(
            re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
        ):
            if str(number) not in ELSEWHERE.get(name, "").split():
                yield name, number, text


TEXTS = {(name, number): text for name, number, text in snippets()}


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    made = new_reput_broker()
    with blocking.Admin(made.address) as admin, blocking.Producer(made.address) as producer:
        for topic in TOPICS:
            admin.create_topic(topic, queues=1)
        producer.send(Message("orders", b"...", tag="paid", properties={"customer": "c-1"}))
    return made


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
    text = (
        TEXTS[key]
        .replace("127.0.0.1:10911", address)
        .replace("port=0)", small + ")")
        .replace("100_000", "1_000")
    )
    return compile(text, f"{key[0]} #{key[1]}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def run(key: tuple[str, int], address: str, **names: Any) -> dict[str, Any]:
    """Run a snippet with every public name of the client."""
    found = {
        **PUBLIC,
        "UTC": UTC,
        "datetime": datetime,
        "timedelta": timedelta,
        "suppress": suppress,
        **names,
    }
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

    exec(compiled(("README.md", 0), broker.address), {"print": show})
    assert [str(values[-1]) for values in shown] == ["flushed", str(b"...")]


@pytest.mark.parametrize(
    "key", [("README.md", 1), ("docs/embedding.md", 0), ("docs/embedding.md", 1)], ids=str
)
def test_programs(
    broker: BackgroundBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compiled(key, broker.address), {})


def test_readme_with_a_broker_of_its_own(tmp_path: Path) -> None:
    trio.run(lambda: run(("README.md", 2), "127.0.0.1:1", path=tmp_path / "data"))


@pytest.mark.parametrize("number", range(4))
def test_client(broker: BackgroundBroker, number: int) -> None:
    async def main() -> None:
        async with PullConsumer(broker.address, group="g") as consumer:
            names = {"consumer": consumer, "orders": some_orders(), "note": lambda _posted: None}
            await run(("docs/client.md", number), broker.address, print=lambda *_: ending(), **names)

    trio.run(main)


def test_delays(broker: BackgroundBroker) -> None:
    async def main() -> None:
        async with Producer(broker.address) as producer:
            await run(("docs/delays.md", 0), broker.address, producer=producer)

    trio.run(main)
    with blocking.Admin(broker.address) as admin:
        assert len(admin.list_delayed(topic="reminders")) == 3


def test_request_and_reply(broker: BackgroundBroker) -> None:
    shown: list[object] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            def show(body: object, *_more: object) -> None:
                shown.append(body)
                nursery.cancel_scope.cancel()

            answering = run(("docs/request-reply.md", 1), broker.address, price_of=lambda body: body * 2)
            nursery.start_soon(_awaited, answering)
            await run(("docs/request-reply.md", 0), broker.address, print=show)

    trio.run(main)
    assert shown == [b"4242"]


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


def test_every_snippet_is_run() -> None:
    run_here = {("README.md", number) for number in range(3)} | {
        ("docs/client.md", number) for number in range(4)
    }
    run_here |= {("docs/embedding.md", 0), ("docs/embedding.md", 1), ("docs/delays.md", 0)}
    run_here |= {
        (f"docs/{name}.md", number) for name in ("request-reply", "transactions") for number in (0, 1)
    }
    assert set(TEXTS) == run_here
