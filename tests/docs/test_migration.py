"""Each line of docs/from-*.md that has code on its right does there what it says, against a broker.

The code is taken from the pages. A check of the line's name prepares what the code needs, and judges what it did.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

import pytest
import trio

import reput_client
from docs.blocks import BLOCKS, ROOT
from reput_broker.background import BackgroundBroker
from reput_client import (
    AckLevel,
    Credentials,
    InvalidMessage,
    Message,
    MessageQueue,
    PullStatus,
    TransactionState,
    blocking,
)
from reput_client.errors import ClientClosed, PermissionDenied, TopicNotFound
from support.tls_files import make_tls_files
from support.waiting import wait_until

PAGES: Final = sorted((ROOT / "docs").glob("from-*.md"))
SECRET: Final = "secret-of-the-administrator"
BODIES: Final = [b"%d" % number for number in range(5)]
_KINDS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "admin": ("Admin", {}),
    "consumer": ("Consumer", {"group": "billing", "topic": "orders"}),
    "pop": ("PopConsumer", {"group": "billing", "topic": "orders"}),
    "producer": ("Producer", {}),
    "pull": ("PullConsumer", {"group": "billing"}),
}
"""The clients that the page says are given."""
_CODE: Final = r"`[^`]+`"


class Line(NamedTuple):
    """A line of a table."""

    section: str
    client: ModuleType
    """The API of its section."""
    task: str
    theirs: str
    ours: str

    @property
    def code(self) -> str:
        """The code that its right side begins with; empty if there is none."""
        found = re.match(rf"{_CODE}(?:<br>{_CODE})*", self.ours)
        spans = re.findall(_CODE, found[0]) if found else []
        return "\n".join(span.strip("`") for span in spans)

    def __str__(self) -> str:
        return f"{self.section.partition(':')[0]}: {self.task}"


def lines() -> list[Line]:
    found = []
    section, client = "", reput_client
    for text in (line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines()):
        if text.startswith("## "):
            section = text.removeprefix("## ")
        if told := re.match(r"On the right: `from (\S+) import", text):
            client = import_module(told[1])
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", text)[1:-1]]
        if len(cells) == 3 and cells[0] and not cells[0].startswith("---"):
            found.append(Line(section, client, *cells))
    return found


LINES: Final = lines()


class Scene:
    """The broker of one line, and what its code uses."""

    def __init__(self, start: Callable[..., BackgroundBroker], line: Line, directory: Path) -> None:
        self.start = start
        self.line = line
        self.directory = directory
        self.address = ""
        self.names: dict[str, Any] = {}
        """What the code uses besides the given names; its clients are added when they are made."""
        self.observer: dict[str, Any] = {}
        self.before: Callable[[], Any] = lambda: None
        self.after: Callable[[], Any] = lambda: None
        """What to do before and after the code, while its clients are open."""

    def broker(self, queues: int = 1, bodies: list[bytes] | None = None, **options: Any) -> None:
        """Start the broker, and fill its topic."""
        self.address = self.start(**options).address
        with blocking.Admin(self.address, **self.observer) as admin:
            admin.create_topic("orders", queues=queues)
        if bodies:
            self.send(bodies)

    def send(self, bodies: list[bytes]) -> None:
        """Store messages in order."""
        with blocking.Producer(self.address) as producer:
            producer.send_batch([Message("orders", body) for body in bodies], queue_id=0)

    def stored(self, topic: str = "orders", queues: int = 1) -> list[Any]:
        """Return the messages of a topic."""
        with blocking.PullConsumer(self.address, group="observer", **self.observer) as consumer:
            return [
                message
                for queue_id in range(queues)
                for message in consumer.pull(topic, queue_id, 0, wait_s=0.0).messages
            ]

    def committed(self) -> int | None:
        """Return what the group has committed."""
        with blocking.Admin(self.address) as admin:
            return admin.committed_offset("billing", "orders", 0)

    def handle(self) -> list[bytes]:
        """Give the code a handler that stops its consumer, and return what that collects."""
        handled: list[bytes] = []

        def handle(message: Any) -> None:
            handled.append(message.body)
            if len(handled) == len(BODIES):
                self.names["pop" if "pop" in self.names else "consumer"].stop()

        async def handle_async(message: Any) -> None:
            handle(message)

        self.names["handle"] = handle_async if "await" in self.line.code else handle
        return handled

    async def __call__(self) -> None:
        """Run the code, with the clients that it names."""
        names = [node for node in ast.walk(ast.parse(self.line.code)) if isinstance(node, ast.Name)]
        assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        used = {node.id for node in names} - assigned - set(self.names)
        async with AsyncExitStack() as stack:
            await self._prepare(used, stack)
            public = {name: getattr(self.line.client, name) for name in dir(self.line.client)}
            found = {**public, "address": self.address, **self.names}
            if "consumer" in assigned:
                self.names["consumer"] = _Late(found, "consumer")
            program = compile(self.line.code, str(self.line), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            with trio.fail_after(20):
                await _done(self.before())
                await _done(eval(program, found))
                self.names = found
                await _done(self.after())

    async def _prepare(self, used: set[str], stack: AsyncExitStack) -> None:
        """Enter the clients that the code uses, and receive the message that it does."""
        receives = bool(used & {"message", "messages"})
        if "queue" in used or (receives and self.line.section.endswith("kafka")):
            used.add("consumer")
        elif receives:
            used.add("pop")
        for name in sorted(used & _KINDS.keys()):
            kind, options = _KINDS[name]
            new = getattr(self.line.client, kind)(self.address, **options)
            is_blocking = self.line.client is blocking
            self.names[name] = stack.enter_context(new) if is_blocking else await stack.enter_async_context(new)
        if "queue" in used:
            assignment = self.names["consumer"].assignment
            self.names["queue"] = next(queue for queue in assignment if queue.topic == "orders")
        if receives and "pop" in used:
            self.names["messages"] = await _done(self.names["pop"].receive(1, invisible_s=30.0))
            (self.names["message"],) = self.names["messages"]
        elif receives:
            self.names["message"] = await _done(self.names["consumer"].take(5.0))


class _Late:
    """A client that the code is about to make, for the handler, which stops it."""

    def __init__(self, names: dict[str, Any], name: str) -> None:
        self._names, self._name = names, name

    def stop(self) -> None:
        self._names[self._name].stop()


async def _done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


Check: TypeAlias = Callable[[Scene], Generator[None, None, None]]
CHECKS: Final[dict[str, Check]] = {}


def check(*tasks: str) -> Callable[[Check], Check]:
    """Register a check, which yields for the code to run, for the lines of these names."""

    def register(function: Check) -> Check:
        CHECKS.update(dict.fromkeys(tasks, function))
        return function

    return register


def test_the_pages_have_a_check_for_each_line_with_code_and_no_others() -> None:
    assert len(LINES) > 100
    assert {line.client for line in LINES} == {reput_client, blocking}
    assert {line.task for line in LINES if line.code} == set(CHECKS)
    assert len({str(line) for line in LINES}) == len(LINES)
    for line in LINES:
        assert line.code or line.ours.startswith("Not there"), line
        assert line.theirs.startswith(("`", "none")), line


@pytest.mark.parametrize("line", [line for line in LINES if line.code], ids=str)
def test_a_line_does_what_it_says(
    line: Line, new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPUT_OFFSETS_DIR", str(tmp_path / "offsets"))
    scene = Scene(new_reput_broker, line, tmp_path)
    steps = CHECKS[line.task](scene)
    for _ in steps:
        trio.run(scene)


def block_of(page: str, title: str) -> str:
    """Return the program of a page that has this title."""
    (found,) = (block.text for block in BLOCKS if (block.page, block.title) == (page, title))
    return found


def test_the_bridge_stores_a_record_once_that_it_copies_again(
    new_reput_broker: Callable[..., BackgroundBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = new_reput_broker(store={"index": True})
    program = block_of("docs/coming-from.md", "bridge.py").replace("127.0.0.1:10911", broker.address)
    acknowledged: list[str] = []

    def acknowledge(record: str) -> None:
        if record == "orders-1" and record not in acknowledged:
            acknowledged.append(record)
            raise KeyboardInterrupt  # before the old broker has it
        acknowledged.append(record)

    def records() -> Generator[tuple[str, bytes, Callable[[], None]]]:
        for number in range(3):
            yield f"orders-{number}", BODIES[number], partial(acknowledge, f"orders-{number}")

    old = ModuleType("old_broker")
    old.records = records  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "old_broker", old)
    with pytest.raises(KeyboardInterrupt):
        exec(program, {})
    exec(program, {})
    assert acknowledged == ["orders-0", "orders-1", "orders-0", "orders-1", "orders-2"]
    with blocking.PullConsumer(broker.address, group="g") as consumer:
        stored = [message.body for queue in range(4) for message in consumer.pull("orders", queue, 0).messages]
    assert sorted(stored) == BODIES[:3]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_other_brokers_programs_compile(page: Path) -> None:
    """They are not run: their broker is not there."""
    blocks = [block for block in BLOCKS if block.page == f"docs/{page.name}" and block.not_run]
    assert "old_broker.py" in {block.title for block in blocks}
    for block in blocks:
        compile(block.text, str(block), "exec")


# -- sending -------------------------------------------------------------------------------------------------------


@check("Connect and close", "Send one, and wait", "No acknowledgement", "Time and size of batches")
@check("Retries and their end")
def one_is_stored(scene: Scene) -> Generator[None]:
    scene.broker()
    yield
    wait_until(lambda: [message.body for message in scene.stored()] == [b"42"])
    if "receipt" in scene.names:
        assert scene.names["receipt"].ack is AckLevel.FLUSHED


@check("User and TLS")
def a_user_over_tls(scene: Scene) -> Generator[None]:
    files = make_tls_files(scene.directory)  # in the current directory: ca.pem
    scene.observer = {"credentials": Credentials("admin", SECRET), "tls": reput_client.TLS(ca=files.ca)}
    access = {"enabled": True, "admin_secret": SECRET}
    scene.broker(access=access, tls={**files.server_options(), "http_mode": "off"})
    with blocking.Admin(scene.address, **scene.observer) as admin:
        admin.create_user("alice", "secret-of-alice-0", is_admin=True)
    scene.names["secret"] = "secret-of-alice-0"
    yield
    assert [message.body for message in scene.stored()] == [b"42"]


@check("Send, and wait later")
def posted_one(scene: Scene) -> Generator[None]:
    scene.broker()
    yield
    assert scene.names["receipt"].queue_offset == 0
    assert [message.body for message in scene.stored()] == [b"42"]


@check("Callback")
def called_back(scene: Scene) -> Generator[None]:
    scene.broker()
    reports: list[Any] = []
    scene.names["report"] = reports.append
    yield
    (posted,) = reports
    assert posted.error is None
    assert posted.result().queue_offset == 0


@check("Send many", "A batch, to one queue", "Post many")
def many_are_stored(scene: Scene) -> Generator[None]:
    scene.broker()
    scene.names["bodies"] = BODIES
    yield
    assert [message.body for message in scene.stored()] == BODIES
    if "receipts" in scene.names:
        assert [receipt.queue_offset for receipt in scene.names["receipts"]] == list(range(5))


@check("Key")
def keyed(scene: Scene) -> Generator[None]:
    scene.broker(queues=4)
    places = set()
    for _ in range(3):
        yield
        places.add(scene.names["receipt"].queue_id)
        scene.names = {}
    assert len(places) == 1
    assert {message.ordering_key for message in scene.stored(queues=4)} == {"c-7"}


@check("Choose the queue")
def placed(scene: Scene) -> Generator[None]:
    scene.broker(queues=4)
    yield
    assert scene.names["receipt"].queue_id == 2


@check("Headers", "Fields")
def with_headers(scene: Scene) -> Generator[None]:
    scene.broker()
    yield
    (message,) = scene.stored()
    assert (message.body, message.get_property("shop")) == (b"42", "berlin")


@check("JSON")
def as_json(scene: Scene) -> Generator[None]:
    scene.broker()
    scene.names = {"json": json, "order": {"number": 42}}
    yield
    assert [json.loads(message.body) for message in scene.stored()] == [{"number": 42}]


@check("Serializer")
def serialized(scene: Scene) -> Generator[None]:
    scene.broker()
    scene.names = {"order": {"number": 42}}
    yield
    assert [json.loads(message.body) for message in scene.stored()] == [{"number": 42}]


@check("Deserializer")
def deserialized(scene: Scene) -> Generator[None]:
    scene.broker(bodies=[b'{"number": 42}'])
    yield
    assert scene.names["received"] == {"number": 42}


@check("Topics by pattern")
def by_pattern(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    scene.names = {"re": re}
    with blocking.Producer(scene.address) as producer:
        producer.send(Message("orders-eu", b"eu"))
    yield
    assert scene.names["message"].body == b"eu"


@check("In the page cache of one broker")
def in_the_page_cache(scene: Scene) -> Generator[None]:
    scene.broker()
    yield
    assert scene.names["receipt"].ack is AckLevel.PAGE_CACHE


@check("On disk")
def on_disk(scene: Scene) -> Generator[None]:
    scene.broker(store={"flush": "sync"})
    yield
    assert scene.names["receipt"].ack is AckLevel.FLUSHED


@check("On the replicas")
def on_the_replicas(scene: Scene) -> Generator[None]:
    scene.broker(ha_port=0)
    scene.start(broker_id=1, ha_port="off", ha={"role": "SLAVE", "master": scene.address})
    with blocking.Admin(scene.address) as admin:
        wait_until(lambda: _brokers(admin) == 2)
    yield
    assert scene.names["receipt"].ack is AckLevel.REPLICATED


def _brokers(admin: blocking.Admin) -> int:
    (data,) = admin.cluster_info().broker_addr_table.values()
    return len(data.broker_addrs)


@check("Idempotence")
def sent_again(scene: Scene) -> Generator[None]:
    scene.broker()
    yield
    # What a repetition of the producer sends: the same id.
    receipt = scene.names["receipt"]
    with blocking.Producer(scene.address, deduplicate=True) as producer:
        again = producer.send(Message("orders", b"42", unique_id=receipt.unique_id))
    assert again.queue_offset == receipt.queue_offset
    assert len(scene.stored()) == 1


@check("Idempotence over restarts")
def sent_twice(scene: Scene) -> Generator[None]:
    scene.broker(store={"index": True})
    for _ in range(2):
        yield
        scene.names = {}
    assert [message.message_id for message in scene.stored()] == ["order-17"]


@check("Transactions")
def in_a_transaction(scene: Scene) -> Generator[None]:
    scene.broker()
    seen_before: list[int] = []

    def pay(message: Message) -> Any:
        seen_before.append(len(scene.stored()))
        return _value(scene, TransactionState.COMMIT)

    scene.names = {"pay": pay, "was_paid": lambda _: _value(scene, TransactionState.UNKNOWN)}
    yield
    assert seen_before == [0]
    wait_until(lambda: [message.body for message in scene.stored()] == [b"42"])


def _value(scene: Scene, value: Any) -> Any:
    async def later() -> Any:
        return value

    return value if scene.line.client is blocking else later()


@check("Send what is pending")
def flushed(scene: Scene) -> Generator[None]:
    scene.broker()
    posted: list[Any] = []

    async def post() -> None:
        posted.append(await _done(scene.names["producer"].post(Message("orders", b"42"))))

    scene.before = post
    scene.after = lambda: posted.append(posted[0].done)
    yield
    assert posted[1] is True


@check("Close")
def closed(scene: Scene) -> Generator[None]:
    scene.broker()

    async def send() -> None:
        with pytest.raises(ClientClosed):
            await _done(scene.names["producer"].send(Message("orders", b"42")))

    scene.after = send
    yield


@check("Errors")
def refused(scene: Scene) -> Generator[None]:
    scene.broker()
    shown: list[Any] = []
    scene.names = {"body": b"x" * (8 << 20), "print": shown.append}
    yield
    assert shown == [False]
    assert scene.stored() == []
    with blocking.Producer(scene.address) as producer, pytest.raises(InvalidMessage):
        producer.send(Message("orders", scene.names["body"]))


@check("Subjects", "Routing key")
def tagged(scene: Scene) -> Generator[None]:
    scene.broker()
    yield
    assert [message.tag for message in scene.stored()] == ["paid"]


@check("Delay")
def delayed(scene: Scene) -> Generator[None]:
    scene.broker()
    yield
    with blocking.Admin(scene.address) as admin:
        (waiting,) = admin.list_delayed(topic="orders")
    assert 0 < waiting.deliver_at.timestamp() - time.time() <= 60
    assert scene.stored() == []


@check("Time to live")
def expiring(scene: Scene) -> Generator[None]:
    scene.broker()
    yield
    (message,) = scene.stored()
    assert message.expires_at_ms is not None
    assert 0 < message.expires_at_ms / 1000 - time.time() <= 60


@check("Priority")
def with_a_priority(scene: Scene) -> Generator[None]:
    scene.broker()
    with blocking.Admin(scene.address) as admin, blocking.Producer(scene.address) as producer:
        admin.create_topic("jobs", queues=4, message_type="PRIORITY")
        producer.send(Message("jobs", b"41", priority=2))
    yield
    with blocking.PopConsumer(scene.address, group="billing", topic="jobs") as consumer:
        (first,) = consumer.receive(1)
    assert (first.body, first.priority) == (b"42", 3)


# -- consuming with queues -----------------------------------------------------------------------------------------


@check("Consume in a group")
def consumed_in_a_group(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    handled = scene.handle()
    yield
    assert handled == BODIES
    assert scene.committed() == 5


@check("Call a handler, concurrently", "Call a handler")
def handled_concurrently(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    handled = scene.handle()
    yield
    assert sorted(handled) == BODIES
    if "consumer" in scene.names:
        assert scene.committed() == 5
    else:
        assert popped(scene) == []


@check("Begin with new messages")
def from_the_end(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert scene.names["message"] is None
    assert scene.committed() == 5


@check("Begin at a time")
def from_a_time(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    scene.names["when"] = _after_the_first(scene)
    yield
    assert scene.names["message"].body == b"later"


def _after_the_first(scene: Scene) -> datetime:
    """Store a message in a later millisecond than all others, and return its time."""
    stored_ms = scene.stored()[-1].store_timestamp_ms
    wait_until(lambda: time.time() * 1000 > stored_ms + 1)
    scene.send([b"later"])
    return datetime.fromtimestamp(scene.stored()[-1].store_timestamp_ms / 1000, UTC)


@check("Poll")
def received_one(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert scene.names["message"].body == b"0"


@check("Poll several")
def received_several(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert [message.body for message in scene.names["messages"]] == BODIES


@check("Commit", "Commit an offset")
def committed_one(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert scene.committed() == 1


@check("Mark as handled, commit later")
def marked(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert scene.committed() == 1  # at the end of the consumer


@check("Position", "Committed offset")
def positioned(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    with blocking.Admin(scene.address) as admin:
        admin.commit_offset("billing", "orders", 0, 2)
    yield
    assert scene.names["offset"] == 2


@check("Lag")
def lagging(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert {queue.topic: lag for queue, lag in scene.names["lag"].items()}["orders"] == 5


def next_of(scene: Scene) -> int:
    """Return where the group's next member would begin."""
    with blocking.Consumer(scene.address, group="billing", topic="orders") as consumer:
        return {queue.topic: at for queue, at in consumer.positions().items()}["orders"]


@check("Seek")
def sought(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert next_of(scene) == 3


@check("Seek to the beginning")
def sought_the_beginning(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    with blocking.Admin(scene.address) as admin:
        admin.commit_offset("billing", "orders", 0, 4)
    yield
    assert next_of(scene) == 0


@check("Seek to the end")
def sought_the_end(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert next_of(scene) == 5


@check("Seek to a time")
def sought_a_time(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    scene.names["timestamp_ms"] = int(_after_the_first(scene).timestamp() * 1000)
    yield
    assert next_of(scene) == 5


@check("Pause", "Resume")
def paused(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    resumes = scene.line.task == "Resume"
    received: list[Any] = []
    if resumes:
        scene.before = lambda: scene.names["consumer"].pause(scene.names["queue"])

    async def receive() -> None:
        assert (scene.names["queue"] in scene.names["consumer"].paused) is not resumes
        received.append(await _done(scene.names["consumer"].receive(5.0 if resumes else 0.2)))

    scene.after = receive
    yield
    assert (received[0] is None) is not resumes


@check("Rebalance listener")
def told_of_queues(scene: Scene) -> Generator[None]:
    scene.broker()
    told: dict[str, list[MessageQueue]] = {"assigned": [], "revoked": []}
    scene.names = {name: queues.extend for name, queues in told.items()}
    yield
    assert "orders" in {queue.topic for queue in told["assigned"]}
    assert set(told["assigned"]) == set(told["revoked"])


@check("Every member gets every message")
def broadcast(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    for member in range(2):
        scene.names = {}
        scene.directory.joinpath(f"member-{member}").mkdir()
        with pytest.MonkeyPatch.context() as patch:  # each member has its offsets elsewhere
            patch.setenv("REPUT_OFFSETS_DIR", str(scene.directory / f"member-{member}"))
            yield
        assert scene.names["message"].body == b"0"


@check("In order")
def in_order(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert [message.body for message in scene.names["messages"]] == [b"0"]


@check("Without a group", "One message by its place", "Read a range")
def pulled(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert [message.body for message in scene.names["result"].messages] == BODIES
    assert scene.committed() is None


@check("Read and wait, without a group")
def waited(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert scene.names["result"].status is PullStatus.NO_NEW_MESSAGE


# -- settling ------------------------------------------------------------------------------------------------------


@check("Redeliver later")
def redelivered_later(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES[:1])
    yield
    if scene.line.section.endswith("kafka"):
        with blocking.Admin(scene.address) as admin:
            (delayed,) = admin.list_delayed()
        assert 0 < delayed.deliver_at.timestamp() - time.time() <= 60
        assert scene.committed() == 1
    else:
        assert scene.names["message"].is_given_back
        assert popped(scene) == []


@check("Requeue")
def requeued(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES[:1])
    yield
    assert scene.names["message"].is_given_back
    with blocking.PopConsumer(scene.address, group="billing", topic="orders") as consumer:
        (again,) = consumer.receive(wait_s=5.0)
    assert (again.body, again.delivery_attempt) == (b"0", 2)


@check("Dead letter")
def rejected(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES[:1])
    yield
    (letter,) = scene.stored("%DLQ%billing")
    assert (letter.body, letter.get_property("RETRY_REASON")) == (b"0", "no content")


def popped(scene: Scene) -> list[bytes]:
    """Return what another member gets now."""
    with blocking.PopConsumer(scene.address, group="billing", topic="orders") as consumer:
        return [message.body for message in consumer.receive(wait_s=0.2)]


@check("Acknowledge", "Acknowledge several")
def acknowledged(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES[:1])
    yield
    assert scene.names["message"].is_acknowledged
    assert popped(scene) == []


@check("Receive several", "Time to acknowledge", "Create a group")
def popped_several(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    scene.after = lambda: _has_a_minute(scene, "messages")
    yield
    assert [message.body for message in scene.names["messages"]] == BODIES
    assert popped(scene) == []


def _has_a_minute(scene: Scene, name: str) -> None:
    now = time.monotonic() if scene.line.client is blocking else trio.current_time()
    received = scene.names[name]
    for message in received if isinstance(received, list) else [received]:
        assert 50 < message._invisible_until - now <= 60


@check("Another queue of the exchange")
def another_group(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert [message.body for message in scene.names["messages"]] == BODIES
    assert popped(scene) == BODIES


@check("Entries of dead workers")
def popped_again(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    with blocking.PopConsumer(scene.address, group="billing", topic="orders") as dying:
        assert len(dying.receive(invisible_s=1.0)) == 5
    yield
    messages = scene.names["messages"]
    assert messages
    assert {message.delivery_attempt for message in messages} == {2}


@check("Still in progress")
def extended(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES[:1])
    scene.after = lambda: _has_a_minute(scene, "message")
    yield
    assert popped(scene) == []


@check("Parts of a message")
def parts_of(scene: Scene) -> Generator[None]:
    scene.broker()
    with blocking.Producer(scene.address) as producer:
        message = Message("orders", b"42", properties={"shop": "berlin"})
        receipt = producer.send(message, ordering_key="c-7")
    yield
    body, key, properties, *place = scene.names["parts"]
    assert (body, key, properties["shop"]) == (b"42", "c-7", "berlin")
    assert place == [0, 0, receipt.store_timestamp_ms]


@check("Number of this delivery")
def attempted(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES[:1])
    yield
    assert scene.names["attempt"] == 1


@check("Place in the stream")
def place_of(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES[:1])
    yield
    assert scene.names["place"] == (MessageQueue("orders", "broker-a", 0), 0)


@check("Filter by subjects", "Bind by routing keys")
def filtered(scene: Scene) -> Generator[None]:
    scene.broker()
    with blocking.Producer(scene.address) as producer:
        for tag in ("paid", "declined", "refunded"):
            producer.send(Message("orders", b"42", tag=tag))
    yield
    assert [message.tag for message in scene.names["messages"]] == ["paid", "refunded"]


@check("Limit of deliveries")
def limited(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES[:1])
    yield
    attempts = []
    with blocking.PopConsumer(scene.address, group="billing", topic="orders") as consumer:
        while "%DLQ%billing" not in _topics(scene):
            for message in consumer.receive(wait_s=0.2):
                attempts.append(message.delivery_attempt)
                message.nack()
    assert attempts == [1, 2, 3, 4, 5]
    wait_until(lambda: [letter.body for letter in scene.stored("%DLQ%billing")] == BODIES[:1])


def _topics(scene: Scene) -> list[str]:
    with blocking.Admin(scene.address) as admin:
        return admin.list_topics()


@check("Stop a group")
def stopped(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    with pytest.raises(PermissionDenied):
        popped(scene)


# -- requests ------------------------------------------------------------------------------------------------------


@check("Request", "Reply")
def asked_and_answered(scene: Scene) -> Generator[None]:
    scene.broker()
    replies: list[bytes] = []

    async def answer() -> None:
        async with (
            reput_client.Consumer(scene.address, group="pricing", topic="prices") as consumer,
            reput_client.Producer(scene.address, group="pricing") as producer,
        ):
            message = await consumer.receive()
            assert message is not None
            await producer.reply(message, b"19.90")

    async def ask() -> None:
        async with reput_client.Producer(scene.address, group="shop") as producer:
            replies.append((await producer.request(Message("prices", b"42"), timeout_s=10.0)).body)

    own = scene.__call__

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            if scene.line.task == "Request":
                nursery.start_soon(answer)
                await own()
                replies.append(scene.names["reply"].body)
                return
            async with reput_client.Consumer(scene.address, group="pricing", topic="prices") as consumer:
                nursery.start_soon(ask)
                scene.names["message"] = await consumer.receive()
                await own()

    with blocking.Admin(scene.address) as admin:
        admin.create_topic("prices", queues=1)
    trio.run(both)
    assert replies == [b"19.90"]
    yield from ()


# -- administration ------------------------------------------------------------------------------------------------


@check("Create a topic")
def created(scene: Scene) -> Generator[None]:
    scene.broker()
    yield
    with blocking.Admin(scene.address) as admin:
        assert admin.topic_config("orders").write_queue_nums == 8


@check("Delete a topic")
def deleted(scene: Scene) -> Generator[None]:
    scene.broker()
    yield
    with blocking.Admin(scene.address) as admin, pytest.raises(TopicNotFound):
        admin.topic_config("orders")


@check("List topics")
def listed(scene: Scene) -> Generator[None]:
    scene.broker()
    yield
    assert "orders" in scene.names["topics"]


def with_a_group(scene: Scene) -> None:
    scene.broker(bodies=BODIES)
    with blocking.Admin(scene.address) as admin:
        admin.put_group(reput_client.SubscriptionGroupConfig("billing"))
        admin.commit_offset("billing", "orders", 0, 2)


@check("List groups", "Groups and their lag")
def listed_groups(scene: Scene) -> Generator[None]:
    with_a_group(scene)
    yield
    assert {group.group: group.lag for group in scene.names["groups"]}["billing"] == 3


@check("Progress of a group")
def described(scene: Scene) -> Generator[None]:
    with_a_group(scene)
    yield
    assert [(queue.committed_offset, queue.lag) for queue in scene.names["progress"].queues] == [(2, 3)]


@check("Reset offsets", "Read again")
def reset(scene: Scene) -> Generator[None]:
    with_a_group(scene)
    yield
    assert scene.committed() == 0


@check("Delete a group")
def deleted_group(scene: Scene) -> Generator[None]:
    with_a_group(scene)
    yield
    with blocking.Admin(scene.address) as admin:
        assert "billing" not in admin.group_configs()
    assert scene.committed() is None


@check("Members")
def listed_members(scene: Scene) -> Generator[None]:
    scene.broker()
    yield
    assert scene.names["members"] == [scene.names["consumer"].client_id]


@check("Length")
def measured(scene: Scene) -> Generator[None]:
    scene.broker(bodies=BODIES)
    yield
    assert [(each.min_offset, each.max_offset) for each in scene.names["stats"].offset_table.values()] == [(0, 5)]
