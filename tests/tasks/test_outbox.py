"""The outbox of SQLAlchemy and of Django, and its relay, on a real broker."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction
from django.test.utils import override_settings
from sqlalchemy import Connection, Engine, MetaData, create_engine, delete, func, select, update

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Message, Producer, ReceivedMessage
from reput_client.outbox import OutboxRow, OutboxStore, Outcome, Relay, columns_of
from reput_client.outbox import relay as relay_module
from reput_client.outbox.relay import SqliteLock
from reput_client.outbox.sqlalchemy import SqlAlchemyOutbox
from reput_client.tasks.django.interface import InvalidTaskBackend, TaskResultStatus, task_backends
from reput_client.tasks.django.models import DjangoOutbox, Outbox
from reput_protocol.errors import ErrorCode, InvalidMessage, ReputError, error_from_response
from reput_protocol.record.message import encode_properties_text
from support.waiting import wait_until
from tasks import django_jobs as jobs


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.sqlite3'}")
    yield engine
    engine.dispose()


@pytest.fixture
def outbox(engine: Engine) -> SqlAlchemyOutbox:
    outbox = SqlAlchemyOutbox(MetaData())
    outbox.table.metadata.create_all(engine)
    return outbox


@pytest.fixture
def topic(address: str, name: str) -> str:
    """A topic of the test's own with one queue."""
    topic = name.replace(".", "-")
    with Admin(address) as admin:
        admin.create_topic(topic, queues=1)
    return topic


@contextmanager
def running(*relays: Relay) -> Iterator[None]:
    threads = [threading.Thread(target=relay.run) for relay in relays]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for relay in relays:
            relay.stop()
        for thread in threads:
            thread.join(20)


def stored(address: str, topic: str) -> list[ReceivedMessage]:
    """The messages of the topic's queue."""
    with Admin(address) as admin:
        return list(admin.fetch_messages(topic, 0, 0, 64).messages)


def left(engine: Engine, outbox: SqlAlchemyOutbox) -> int:
    """How many rows the table has."""
    with engine.connect() as connection:
        return int(connection.scalar(select(func.count()).select_from(outbox.table)) or 0)


class Cut(OutboxStore):
    """A store whose connection is cut after rows were sent, before they are deleted."""

    def __init__(self, store: OutboxStore) -> None:
        self._store = store

    def relay(self, rows_max: int, send: Callable[[Sequence[OutboxRow]], Outcome]) -> Outcome:
        def sent_and_cut(rows: Sequence[OutboxRow]) -> Outcome:
            assert len(send(rows).sent) == len(rows)
            raise ConnectionError("cut")

        return self._store.relay(rows_max, sent_and_cut)

    def retry(self) -> int:
        return self._store.retry()

    def close(self) -> None:
        self._store.close()


def test_what_is_committed_is_sent_and_what_is_rolled_back_is_not(
    address: str, topic: str, engine: Engine, outbox: SqlAlchemyOutbox
) -> None:
    with running(Relay(outbox.at(engine), address)):
        with engine.begin() as connection:
            for number in range(3):
                message = Message(topic, b"%d" % number, "paid", [f"o-{number}"], {"shop": "7"})
                connection.execute(outbox.insert(message, ordering_key="shop 7"))
        with engine.connect() as connection:
            connection.execute(outbox.insert(Message(topic, b"rolled back")))
            connection.rollback()
        with engine.begin() as connection:
            connection.execute(outbox.insert(Message(topic, b"delayed", delay_s=0.5), queue_id=0))
        wait_until(lambda: len(stored(address, topic)) == 4, 20.0)
    found = stored(address, topic)
    assert [each.body for each in found] == [b"0", b"1", b"2", b"delayed"]
    first = found[0]
    assert (first.tag, [*first.keys], first.get_property("shop")) == ("paid", ["o-0"], "7")
    assert first.ordering_key == "shop 7"
    assert found[3].stored_at.timestamp() - found[2].stored_at.timestamp() > 0.4
    assert left(engine, outbox) == 0


def test_rows_that_were_sent_and_not_deleted_are_stored_once(
    tmp_path: Path, engine: Engine, outbox: SqlAlchemyOutbox
) -> None:
    """The broker recognises young ones within its window, and old ones as long as it has them."""
    config = {"data_dir": tmp_path / "broker", "port": 0, "http_port": None, "dedup": {"window": "1s"}}
    with BackgroundBroker(BrokerConfig.model_validate(config)) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", queues=1)
        with engine.begin() as connection:
            for number in range(30):
                connection.execute(outbox.insert(Message("orders", b"%d" % number)))
            for options in ({"delay_s": 3600.0}, {"delay_level": 18}):
                connection.execute(outbox.insert(Message("orders", b"delayed", **options)))
        for _ in range(2):
            with closing(Relay(Cut(outbox.at(engine)), broker.address)) as relay, pytest.raises(ConnectionError):
                relay.send_all()
        # Now the rows share a page with one that was not sent.
        with engine.begin() as connection:
            connection.execute(outbox.insert(Message("orders", b"30")))
            connection.execute(update(outbox.table).values(created_ms=outbox.table.c.created_ms - 400_000))
        time.sleep(1.1)
        with closing(Relay(outbox.at(engine), broker.address)) as relay:
            assert relay.send_all() == 33
        assert [each.body for each in stored(broker.address, "orders")] == [b"%d" % n for n in range(31)]
        with Admin(broker.address) as admin:
            assert len(admin.list_delayed(topic="orders")) == 2
    assert left(engine, outbox) == 0


def test_a_page_has_so_many_rows_and_bytes(engine: Engine, outbox: SqlAlchemyOutbox, with_outbox: Any) -> None:
    sizes = [1 << 20, 3 << 20, 1, 5 << 20, *([1] * 5)]
    with engine.begin() as connection:
        for size in sizes:
            connection.execute(outbox.insert(Message("orders", bytes(size))))
            Outbox.add(Message("orders", bytes(size)))
    for store in (outbox.at(engine), DjangoOutbox("default", "default")):
        pages: list[list[int]] = []

        def send(rows: Sequence[OutboxRow], pages: list[list[int]] = pages) -> Outcome:
            pages.append([len(row.body) for row in rows])
            refused = {row.id: "too large" for row in rows if len(row.body) > 4 << 20}
            return Outcome(sent=[row.id for row in rows if row.id not in refused], refused=refused)

        for _ in range(5):
            store.relay(4, send)
        assert store.relay(4, send) == Outcome()
        assert pages == [sizes[:2], sizes[2:3], sizes[3:4], sizes[4:8], sizes[8:]]
        assert store.retry() == 1
        store.close()


def test_a_row_that_is_refused_stays_and_does_not_delay_others(
    address: str, topic: str, engine: Engine, outbox: SqlAlchemyOutbox
) -> None:
    with engine.begin() as connection:
        for body in (b"x" * 9_000_000, b"small"):
            connection.execute(outbox.insert(Message(topic, body)))
    store = outbox.at(engine)
    with closing(Relay(store, address)) as relay:
        assert relay.send_all() == 1
        assert relay.send_all() == 0
        assert [each.body for each in stored(address, topic)] == [b"small"]
        with engine.begin() as connection:
            error = connection.scalar(select(outbox.table.c.error))
            assert error is not None
            assert "bytes" in error
            connection.execute(update(outbox.table).values(body=b"cut"))
        assert store.retry() == 1
        assert relay.send_all() == 1


def test_errors_that_are_not_because_of_a_row_do_not_refuse_it() -> None:
    final = {code for code in ErrorCode if relay_module._is_final(error_from_response(0, f"{code.name}: reason", {}))}
    assert {each.name for each in final} == {
        *("TOO_LARGE", "MALFORMED", "DUPLICATE", "INVALID_ARGUMENT", "NO_TOPIC", "NO_PERMISSION")
    }
    assert relay_module._is_final(InvalidMessage("reason"))
    assert not relay_module._is_final(ReputError("reason"))


def test_a_row_that_is_sent_again_with_another_trace(
    address: str, topic: str, engine: Engine, outbox: SqlAlchemyOutbox
) -> None:
    def message(trace: str) -> Message:
        return Message(topic, b"1", properties={"traceparent": trace}, unique_id="row-1", priority=0)

    with Producer(address, deduplicate=True) as producer:
        producer.send(message("00-1"))
    with engine.begin() as connection:
        connection.execute(outbox.insert(message("00-2")))
    with closing(Relay(outbox.at(engine), address)) as relay:
        assert relay.send_all() == 1
    assert len(stored(address, topic)) == 1


def test_a_relay_that_cannot_connect_or_read_a_row(
    address: str, topic: str, engine: Engine, outbox: SqlAlchemyOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.begin() as connection:
        for body in (b"1", b"2"):
            connection.execute(outbox.insert(Message(topic, body)))
        connection.execute(update(outbox.table).where(outbox.table.c.id == 1).values(options="{"))
    with closing(Relay(outbox.at(engine), address)) as relay:
        with monkeypatch.context() as patch:
            patch.setattr(Producer, "__enter__", fails)
            with pytest.raises(ReputError, match="the broker is away"):
                relay.send_all()
        assert relay.send_all() == 1
    with engine.connect() as connection:
        assert "JSONDecodeError" in str(connection.scalar(select(outbox.table.c.error)))
    with pytest.raises(ValueError, match="sometime"):
        Relay(outbox.at(engine), address, ack="sometime")  # type: ignore[arg-type]


def fails(client: object) -> object:
    raise ReputError("the broker is away")


def test_one_relay_of_sqlite_sends_and_another_takes_over(
    address: str, topic: str, engine: Engine, outbox: SqlAlchemyOutbox
) -> None:
    first, second = outbox.at(engine), outbox.at(engine)
    with engine.begin() as connection:
        connection.execute(outbox.insert(Message(topic, b"1")))

    def send(rows: Sequence[OutboxRow]) -> Outcome:
        with closing(Relay(second, address)) as other:
            assert other.send_all() == 0
        # The program writes while rows are sent.
        with engine.begin() as connection:
            connection.execute(outbox.insert(Message(topic, b"2")))
        return Outcome(sent=[row.id for row in rows])

    assert len(first.relay(10, send).sent) == 1
    first.close()
    with closing(Relay(second, address)) as other:
        assert other.send_all() == 1
    assert [each.body for each in stored(address, topic)] == [b"2"]


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 5, "ttl_s": 60.0},
        {"delay_s": 60.0, "ttl_s": 60.0},
        {"delay_level": 3, "expires_at": datetime(2100, 1, 1, tzinfo=UTC)},
        {"deliver_at": datetime(2099, 1, 1, tzinfo=UTC), "ttl_s": 5.0, "expires_at": datetime(2100, 1, 1, tzinfo=UTC)},
        {"ttl_s": 60.0, "expires_at": datetime(2100, 1, 1, tzinfo=UTC)},
        {"ttl_s": 60.0},
        {"expires_at": datetime(2100, 1, 1, tzinfo=UTC), "properties": {"shop": "7"}, "flag": 3},
    ],
)
def test_a_row_has_the_whole_message(options: dict[str, Any]) -> None:
    message = Message("orders", b"1", "paid", ["o-1"], unique_id="row-1", **options)
    columns = columns_of(message, queue_id=0)
    del columns["error"]
    again, terms = OutboxRow(id=1, **columns).message()
    assert encode_properties_text(again, None) == encode_properties_text(message, None)
    assert (again.topic, again.body, again.flag, terms) == ("orders", b"1", message.flag, {"queue_id": 0})


def test_locks_of_sqlite(tmp_path: Path, engine: Engine, outbox: SqlAlchemyOutbox) -> None:
    """One relay has a table, however its file is named; another table, or a table in memory, is another relay's."""

    def sends(store: OutboxStore) -> bool:
        return bool(store.relay(1, lambda _: Outcome(failure=ConnectionError())).failure)

    second_table = SqlAlchemyOutbox(outbox.table.metadata, "second/table")
    outbox.table.metadata.create_all(engine)
    by_url = create_engine(f"sqlite:///file:{tmp_path}/shop.sqlite3?mode=rw&uri=true")
    for table in (outbox, second_table):
        with engine.begin() as connection:
            connection.execute(table.insert(Message("orders", b"1")))
    first, others = outbox.at(engine), [outbox.at(engine), outbox.at(by_url)]
    with closing(first), closing(second_table.at(by_url)) as second:
        assert sends(first)
        assert not any(map(sends, others))
        assert sends(second)
        assert {path.name for path in tmp_path.glob("*-relay-*")} == {
            "shop.sqlite3-relay-reput_outbox",
            "shop.sqlite3-relay-second%2Ftable",
        }
    with closing(others[1]):
        assert sends(others[1])
    by_url.dispose()
    assert SqliteLock("", "in memory").acquire()
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        SqliteLock(str(tmp_path / "no-directory/shop.sqlite3"), "table").acquire()
    with pytest.raises(TypeError, match="create_engine"):
        outbox.at(object())  # type: ignore[arg-type]


def test_a_row_with_the_id_of_one_that_was_deleted(engine: Engine, outbox: SqlAlchemyOutbox) -> None:
    """Ids are not used again; a row that has one nevertheless is not deleted in place of the other."""

    def insert(connection: Connection) -> int:
        added = connection.execute(outbox.insert(Message("orders", b"1")))
        assert added.inserted_primary_key is not None
        return int(added.inserted_primary_key[0])

    def replaced(rows: Sequence[OutboxRow]) -> Outcome:
        with engine.begin() as connection:
            connection.execute(delete(outbox.table))
            second = insert(connection)
            assert second > rows[0].id
            connection.execute(update(outbox.table).values(id=rows[0].id))
        return Outcome(sent=[rows[0].id])

    with engine.begin() as connection:
        insert(connection)
    with closing(outbox.at(engine)) as store:
        store.relay(1, replaced)
    assert left(engine, outbox) == 1


@pytest.fixture
def with_outbox(address: str, name: str) -> Iterator[Any]:
    with outbox_of_django(address, name) as backend:
        yield backend


@contextmanager
def outbox_of_django(address: str, name: str) -> Iterator[Any]:
    """A backend of Django with an outbox, and a table for it."""
    options = {"server": address, "name": name.replace(".", "-"), "outbox": "default"}
    of_backend = {"BACKEND": "reput_client.tasks.django.ReputBackend", "OPTIONS": options}
    call_command("migrate", verbosity=0)
    with override_settings(TASKS={"default": of_backend}):
        backend = task_backends["default"]
        try:
            yield backend
        finally:
            backend.close()
            Outbox.objects.all().delete()


def test_a_task_in_a_transaction_of_django(with_outbox: Any, address: str, topic: str) -> None:
    backend = with_outbox

    with transaction.atomic():
        kept = jobs.add.using(priority=100).enqueue(1, 2)
        Outbox.add(Message(topic, b"any"))
    with transaction.atomic():
        gone = jobs.add.enqueue(3, 4)
        transaction.set_rollback(True)
    assert backend.get_result(kept.id).status == TaskResultStatus.READY
    call_command("reput_relay", "--once", "--retry")
    assert not Outbox.objects.exists()
    assert backend.get_result(kept.id).status == TaskResultStatus.READY
    assert [each.body for each in stored(address, topic)] == [b"any"]
    with Admin(address) as admin:
        tasks = backend.configuration.topic_of("default")
        (sent,) = admin.find_messages(tasks, kept.id).messages
        assert (sent.queue_id, sent.message_id) == (9, kept.id)
        assert not admin.find_messages(tasks, gone.id).messages


def test_a_backend_without_an_outbox() -> None:
    for alias in ("default", "other"):
        with pytest.raises(InvalidTaskBackend, match=alias):
            Outbox.add(Message("orders", b"any"), backend=alias)


@pytest.mark.parametrize("creates_topics", [True, False])
def test_a_topic_that_was_deleted(tmp_path: Path, name: str, creates_topics: bool) -> None:
    """That of a queue is created again with its priorities, also if the broker would create it without them.

    Another one is created if the broker creates topics; else the row is refused, and delays no other.
    """
    config = {"data_dir": tmp_path, "port": 0, "http_port": None, "topics": {"auto_create": creates_topics}}
    with (
        BackgroundBroker(BrokerConfig.model_validate(config)) as broker,
        outbox_of_django(broker.address, name) as backend,
        Admin(broker.address) as admin,
        ExitStack() as stack,
    ):
        admin.create_topic("orders")
        tasks = backend.configuration.topic_of("default")
        relay = backend.relay()
        assert relay is not None
        stack.enter_context(closing(relay))
        jobs.add.enqueue(1, 2)
        Outbox.add(Message("orders", b"any"))
        assert relay.send_all() == 2
        admin.delete_topic(tasks)
        admin.delete_topic("orders")
        Outbox.add(Message("orders", b"any"))
        kept = [jobs.add.using(priority=priority).enqueue(3, 4) for priority in (-100, 100)]
        assert relay.send_all() == 2 + creates_topics
        assert admin.topic_config(tasks).write_queue_nums == 10
        found = [admin.find_messages(tasks, each.id).messages for each in kept]
        assert [[each.queue_id for each in messages] for messages in found] == [[0], [9]]
        if not creates_topics:
            assert "'orders' does not exist" in Outbox.objects.get().error
            admin.create_topic("orders")
            call_command("reput_relay", "--once", "--retry")
        assert not Outbox.objects.exists()
        stats = admin.topic_stats("orders").offset_table.values()
        assert sum(each.max_offset for each in stats) == 1
