"""The Kombu transport against a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

from reput_client.blocking import Admin, PullConsumer
from reput_client.blocking import Producer as ReputProducer
from reput_client.errors import ConnectFailed
from reput_client.security import TLS, Credentials
from reput_client.tasks.celery.clients import client_options
from reput_client.tasks.celery.receiving import SharedQueue
from reput_client.tasks.celery.topics import Binding, exchange_topic, queue_topic
from reput_protocol.errors import BrokerError, ErrorCode, TopicNotFound
from reput_protocol.record.message import Message

Connect = Callable[..., Connection]


def send(connection: Connection, queue: Queue, *bodies: Any, routing_key: str | None = None, **options: Any) -> None:
    """Publish to a queue's exchange, after its declaration."""
    producer = Producer(connection.channel())
    for body in bodies:
        producer.publish(
            body,
            exchange=queue.exchange,
            routing_key=queue.routing_key if routing_key is None else routing_key,
            declare=[queue],
            **options,
        )


def receive(
    connection: Connection, queue: Queue, count: int, timeout_s: float = 10.0, prefetch: int | None = None
) -> list[Any]:
    """Consume until there are so many messages or the time is over; they are not settled."""
    found: list[Any] = []
    consumer = Consumer(connection.channel(), [queue], on_message=found.append, prefetch_count=prefetch)
    until = time.monotonic() + timeout_s
    with consumer:
        while len(found) < count and (left := until - time.monotonic()) > 0:
            with suppress(TimeoutError):
                connection.drain_events(timeout=left)
    return found


def queue_of(name: str) -> Queue:
    """Return a queue to which is sent by its name."""
    return Queue(name, routing_key=name)


def bodies_of(messages: list[Any]) -> list[Any]:
    return [message.payload for message in messages]


def test_what_is_acknowledged_does_not_come_again(connect: Connect, name: str) -> None:
    queue = queue_of(name)
    send(connect(), queue, {"n": 1}, {"n": 2}, headers={"a": "b"})
    connection = connect()
    first, second = receive(connection, queue, 2)
    assert (first.payload, first.headers, second.payload) == ({"n": 1}, {"a": "b"}, {"n": 2})
    first.ack()
    connection.release()
    (again,) = receive(connect(), queue, 1)
    assert again.payload == {"n": 2}


def test_a_body_of_bytes_comes_as_it_was_sent(connect: Connect, name: str) -> None:
    body = bytes(range(256)) * 300
    connection = connect()
    send(connection, queue_of(name), body, content_type="application/data", content_encoding="binary")
    (message,) = receive(connection, queue_of(name), 1)
    assert message.body == body


def test_a_message_that_was_not_tried_is_given_back_without_an_attempt(
    connect: Connect, name: str, address: str
) -> None:
    queue = queue_of(name)
    send(connect(), queue, *range(5))
    for _ in range(20):  # more than the attempts that the group has
        connection = connect()
        assert receive(connection, queue, 1, prefetch=1)
        connection.release()
    assert sorted(bodies_of(receive(connect(), queue, 5))) == [0, 1, 2, 3, 4]
    with Admin(address) as admin, pytest.raises(TopicNotFound):
        admin.dead_letters(queue_topic(name))  # it would be made for the first one


def test_the_prefetch_limit_leaves_the_rest_to_others(connect: Connect, name: str) -> None:
    queue = queue_of(name)
    send(connect(), queue, *range(6))
    one = receive(connect(), queue, 3, timeout_s=1.5, prefetch=2)
    assert len(one) == 2
    others = receive(connect(), queue, 4)
    assert sorted(bodies_of(one + others)) == [0, 1, 2, 3, 4, 5]


def test_the_prefetch_limit_holds_for_all_queues_of_a_channel(connect: Connect, name: str) -> None:
    queues = [queue_of(f"{name}-{n}") for n in range(3)]
    holder = connect()
    for queue in queues:
        send(holder, queue, *range(3))
    found: list[Any] = []
    with Consumer(holder.channel(), queues, on_message=found.append, prefetch_count=1):
        until = time.monotonic() + 3.0
        while (left := until - time.monotonic()) > 0:
            with suppress(TimeoutError):
                holder.drain_events(timeout=left)
        assert len(found) == 1
        others = [message for queue in queues for message in receive(connect(), queue, 3, timeout_s=2.0)]
    assert len(others) == 8


def test_a_message_in_hand_is_kept_longer_than_its_invisible_time(connect: Connect, name: str) -> None:
    queue = queue_of(name)
    holder = connect(invisible_s=1.0)
    send(holder, queue, "long")
    (held,) = receive(holder, queue, 1)
    assert receive(connect(), queue, 1, timeout_s=2.5) == []
    held.ack()
    holder.release()
    assert receive(connect(), queue, 1, timeout_s=1.5) == []


def test_a_rejected_message_is_a_dead_letter_and_a_requeued_one_comes_again(
    connect: Connect, name: str, address: str
) -> None:
    queue = queue_of(name)
    connection = connect()
    send(connection, queue, "bad", "good")
    bad, good = receive(connection, queue, 2)
    bad.reject()
    good.requeue()
    (again,) = receive(connection, queue, 1)
    assert again.payload == "good"
    assert again.delivery_info["redelivered"] is True
    again.ack()
    with Admin(address) as admin:
        assert len(admin.dead_letters(queue_topic(name))) == 1


def test_what_another_program_has_sent_is_a_dead_letter(connect: Connect, name: str, address: str) -> None:
    queue = queue_of(name)
    connection = connect()
    queue(connection.channel()).declare()
    with ReputProducer(address) as producer:
        producer.send(Message(queue_topic(name), b"\xff no JSON"))
        producer.send(Message(queue_topic(name), b"[1]"))
        producer.send(Message(queue_topic(name), b'{"properties": {}, "headers": "x"}'))
        producer.send(Message(queue_topic(name), b'{"properties": {"delivery_info": null}}'))
    send(connection, queue, "ours")
    assert bodies_of(receive(connection, queue, 1)) == ["ours"]
    with Admin(address) as admin:
        until = time.monotonic() + 10.0
        while len(admin.dead_letters(queue_topic(name))) < 4 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(admin.dead_letters(queue_topic(name))) == 4


def test_higher_priorities_come_first_also_of_tasks_that_have_waited(connect: Connect, name: str) -> None:
    queue = queue_of(name)
    connection = connect()
    eta = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
    send(connection, queue, "high, later", headers={"eta": eta}, priority=9)
    send(connection, queue, "low", priority=0)
    send(connection, queue, "middle", priority=5)
    time.sleep(2.0)
    assert bodies_of(receive(connection, queue, 3)) == ["high, later", "middle", "low"]


@pytest.mark.parametrize("wait_max_s", [60.0, 0.4])
def test_a_task_with_an_eta_waits_in_the_broker(connect: Connect, name: str, wait_max_s: float) -> None:
    """Also when it is longer than a message may wait at a time."""
    queue = queue_of(name)
    connection = connect(wait_max_s=wait_max_s)
    due = datetime.now(UTC) + timedelta(seconds=2.5)
    send(connection, queue, "later", headers={"eta": due.isoformat()})
    (message,) = receive(connection, queue, 1)
    early_s = (due - datetime.now(UTC)).total_seconds()
    assert early_s < 1.1
    message.ack()
    assert receive(connection, queue, 1, timeout_s=1.5) == []


def test_an_expired_message_is_not_delivered(connect: Connect, name: str) -> None:
    connection = connect()
    send(connection, queue_of(name), "old", expiration=0.2)
    send(connection, queue_of(name), "new", expiration=60)
    time.sleep(0.4)
    assert bodies_of(receive(connection, queue_of(name), 2, timeout_s=1.5)) == ["new"]


def test_each_shared_queue_of_an_exchange_gets_what_fits_it_once(connect: Connect, name: str) -> None:
    exchange = Exchange(name, "topic")
    all_logs, errors = (Queue(f"{name}-all", exchange, "log.#"), Queue(f"{name}-errors", exchange, "log.*.error"))
    for queue in (all_logs, errors):
        queue(connect().channel()).declare()
    sender = connect()
    send(sender, all_logs, "a", routing_key="log.web.error")
    send(sender, all_logs, "b", routing_key="log.web.info")
    send(sender, all_logs, "c", routing_key="other.web.error")
    assert bodies_of(receive(connect(), all_logs, 3, timeout_s=2.0)) == ["a", "b"]
    assert bodies_of(receive(connect(), errors, 2, timeout_s=2.0)) == ["a"]


def test_a_queue_gets_of_an_exchange_what_comes_after_its_binding(connect: Connect, name: str) -> None:
    exchange = Exchange(name, "fanout")
    first, second = Queue(f"{name}-1", exchange), Queue(f"{name}-2", exchange)
    sender = connect()
    send(sender, first, "before")
    second(connect().channel()).declare()
    send(sender, first, "after")
    assert bodies_of(receive(connect(), first, 2)) == ["before", "after"]
    assert bodies_of(receive(connect(), second, 2, timeout_s=1.5)) == ["after"]


def test_a_direct_exchange_with_keys(connect: Connect, name: str) -> None:
    exchange = Exchange(name, "direct")
    red, blue = Queue(f"{name}-red", exchange, "red"), Queue(f"{name}-blue", exchange, "blue")
    sender = connect()
    blue(connect().channel()).declare()
    send(sender, red, "r")
    send(sender, red, "b", routing_key="blue")
    send(sender, red, "for none", routing_key="green")
    assert bodies_of(receive(connect(), red, 2, timeout_s=2.0)) == ["r"]
    assert bodies_of(receive(connect(), blue, 2, timeout_s=2.0)) == ["b"]


def test_transient_queues_get_all_and_leave_nothing_behind(connect: Connect, name: str, address: str) -> None:
    exchange = Exchange(name, "fanout")
    queues = [Queue(f"{name}.{n}", exchange, auto_delete=True, expires=10.0) for n in range(3)]
    readers = [connect() for _ in queues]
    with Admin(address) as admin:
        for reader, queue in zip(readers, queues, strict=True):
            queue(reader.channel()).declare()
        groups = {group.group for group in admin.list_groups()}
        send(readers[0], queues[0], "to all")
        for reader, queue in zip(readers, queues, strict=True):
            assert bodies_of(receive(reader, queue, 1)) == ["to all"]
        Producer(readers[0].channel()).publish("to one", exchange="", routing_key=f"{name}.1")
        assert bodies_of(receive(readers[1], queues[1], 1)) == ["to one"]
        assert receive(readers[2], queues[2], 1, timeout_s=0.5) == []
        assert {group.group for group in admin.list_groups()} - groups <= {"kombu"}  # of all of them
        assert not [topic for topic in admin.list_topics() if topic.startswith(queue_topic(f"{name}."))]


def test_a_transient_queue_has_the_prefetch_limit_and_later_bindings(connect: Connect, name: str) -> None:
    first, second = Exchange(f"{name}-1", "fanout"), Exchange(f"{name}-2", "fanout")
    queue = Queue(f"{name}.own", first, auto_delete=True)
    connection, sender = connect(), connect()
    found: list[Any] = []
    consumer = Consumer(connection.channel(), [queue], on_message=found.append, prefetch_count=2)
    with consumer:
        second(connection.channel()).declare()
        consumer.channel.queue_bind(queue.name, second.name)
        for n in range(5):
            Producer(sender.channel()).publish(n, exchange=first.name, routing_key="")
        Producer(sender.channel()).publish("second", exchange=second, routing_key="")
        until = time.monotonic() + 2.0
        while (left := until - time.monotonic()) > 0:
            with suppress(TimeoutError):
                connection.drain_events(timeout=left)
        assert 2 <= len(found) <= 3  # it reads two topics, and takes no more than one too many
        while len(found) < 6:
            for message in found:
                if not message.acknowledged:
                    message.ack()
            connection.drain_events(timeout=5.0)
    assert sorted(map(str, bodies_of(found))) == ["0", "1", "2", "3", "4", "second"]


def test_a_later_key_of_a_transient_queue_counts_at_once(connect: Connect, name: str) -> None:
    exchange = Exchange(name, "direct")
    queue = Queue(f"{name}.own", exchange, "a", auto_delete=True)
    connection, sender = connect(), Producer(connect().channel())
    found: list[Any] = []
    with Consumer(connection.channel(), [queue], on_message=found.append) as consumer:
        sender.publish("1", exchange=exchange, routing_key="a")
        connection.drain_events(timeout=5.0)
        time.sleep(0.2)  # the next pull waits
        consumer.channel.queue_bind(queue.name, exchange.name, "b")
        sender.publish("2", exchange=exchange, routing_key="b")
        sender.publish("3", exchange=exchange, routing_key="a")
        while len(found) < 3:
            connection.drain_events(timeout=5.0)
    assert bodies_of(found) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("auto_delete", "kind", "method"), [(False, Admin, "topic_stats"), (True, PullConsumer, "max_offset")]
)
def test_a_binding_that_has_failed_can_be_repeated(
    connect: Connect, name: str, auto_delete: bool, kind: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = Exchange(name, "fanout")
    send(connect(), Queue(f"{name}.other", exchange), "before")
    connection = connect()
    queue = Queue(f"{name}.own", exchange, auto_delete=auto_delete)(connection.channel())
    queue.exchange.declare()
    queue.queue_declare()

    def fail(*_: object, **__: object) -> None:
        raise BrokerError(ErrorCode.BUSY, "BUSY: a moment")

    with monkeypatch.context() as patched:
        patched.setattr(kind, method, fail)
        with pytest.raises(connection.channel_errors, match="a moment"):
            queue.queue_bind()
    queue.queue_bind()
    Producer(connect().channel()).publish("after", exchange=name, routing_key="")
    assert bodies_of(receive(connection, Queue(queue.name, exchange, auto_delete=auto_delete), 1)) == ["after"]


def test_a_producer_that_could_not_connect_is_made_again(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, queue = connect(), queue_of(name)
    queue(connection.channel()).declare()
    with monkeypatch.context() as patched:
        patched.setitem(connection.transport.clients.options, "address", ["127.0.0.1:1"])
        with pytest.raises(ConnectFailed):
            send(connection, queue, "lost")
    send(connection, queue, "sent")
    assert bodies_of(receive(connection, queue, 1)) == ["sent"]


def test_events_wait_for_no_disk_and_tasks_do(connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connect()
    asked: list[Any] = []
    queue = queue_of(name)
    send(connection, queue, "x")
    producer = connection.transport.clients.producer
    monkeypatch.setattr(producer, "send", lambda _message, **options: asked.append(options.get("ack")))
    send(connection, queue, "task", delivery_mode=2)
    send(connection, queue, "event", delivery_mode=1)
    assert asked == [None, "page_cache"]


def test_what_ends_a_thread_that_receives_reaches_the_program(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    queue = queue_of(name)
    send(connection, queue, "x")
    channel = connection.channel()
    monkeypatch.setattr(channel, "admit", lambda *_: 1 / 0)
    with (
        Consumer(channel, [queue], on_message=print),
        pytest.raises(ConnectionError, match="not received any more: division by zero"),
    ):
        connection.drain_events(timeout=10.0)
    connection.release()
    assert bodies_of(receive(connect(), queue, 1)) == ["x"]


def test_a_queue_with_a_consumer_is_not_deleted_if_unused_is_asked(connect: Connect, name: str) -> None:
    connection = connect()
    queue = queue_of(name)
    send(connection, queue, "x")
    with Consumer(connection.channel(), [queue], on_message=print):
        queue(connection.channel()).delete(if_unused=True)
        assert queue(connection.channel()).queue_declare(passive=True)
    queue(connection.channel()).delete(if_unused=True)
    with pytest.raises(connection.channel_errors, match="no queue"):
        queue(connection.channel()).queue_declare(passive=True)


def test_a_queue_that_was_deleted_has_its_priorities_again(connect: Connect, name: str, address: str) -> None:
    """The broker creates topics on first use here, but this one is created by the program."""
    connection, queue, topic = connect(), queue_of(name), queue_topic(name)
    send(connection, queue, "deleted")
    with Admin(address) as admin:
        for options in ({"priority": 3}, {"eta": datetime.now(UTC) + timedelta(hours=1)}):
            admin.delete_topic(topic)
            send(connection, queue, "x", headers=options, priority=3)
            config = admin.topic_config(topic)
            assert (config.write_queue_nums, config.message_type) == (10, "PRIORITY")


def test_size_purge_and_delete(connect: Connect, name: str, address: str) -> None:
    connection = connect()
    queue = queue_of(name)(connection.channel())
    send(connection, queue_of(name), *range(7))
    assert queue.queue_declare(passive=True).message_count == 7
    assert len(receive(connect(), queue_of(name), 2, prefetch=2)) == 2
    assert queue.purge() >= 5
    assert queue.queue_declare(passive=True).message_count <= 2  # those that the consumer has given back
    queue.delete()
    with Admin(address) as admin:
        assert queue_topic(name) not in admin.list_topics()
    with pytest.raises(connection.channel_errors, match="no queue"):
        queue.queue_declare(passive=True)


def test_one_message_at_a_time(connect: Connect, name: str) -> None:
    connection = connect()
    queue = queue_of(name)(connection.channel())
    send(connection, queue_of(name), "x")
    message = queue.get()
    assert message is not None
    assert message.payload == "x"
    assert queue.get() is None
    message.requeue()
    again = queue.get(no_ack=True)
    assert again is not None
    assert queue.get() is None


def test_threads_may_settle(connect: Connect, name: str) -> None:
    connection = connect()
    send(connection, queue_of(name), *range(20))
    messages = receive(connection, queue_of(name), 20)
    threads = [threading.Thread(target=message.ack) for message in messages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.release()
    assert receive(connect(), queue_of(name), 1, timeout_s=1.5) == []


def test_the_thread_that_settles_the_last_message_ends_nothing_under_the_others(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    send(connection, queue_of(name), "first", "last")
    first, last = receive(connection, queue_of(name), 2)
    has_begun, may_end = threading.Event(), threading.Event()
    done = SharedQueue.done

    def slow(queue: SharedQueue, message: Any) -> None:
        if threading.current_thread() is thread:
            has_begun.set()
            assert may_end.wait(10)
        done(queue, message)

    monkeypatch.setattr(SharedQueue, "done", slow)
    thread = threading.Thread(target=first.ack)
    thread.start()
    assert has_begun.wait(10)
    last.ack()
    may_end.set()
    thread.join()
    connection.release()
    assert receive(connect(), queue_of(name), 1, timeout_s=1.5) == []


def test_a_url_that_is_away_gives_way_to_the_next(connect: Connect, name: str, address: str) -> None:
    connection = connect(f"reput://127.0.0.1:1//;reput://{address}//")
    send(connection, queue_of(name), "x")
    assert bodies_of(receive(connection, queue_of(name), 1)) == ["x"]


def test_urls_and_settings_become_options_of_the_client() -> None:
    options = client_options(["reput://ann:s%40cret@one:1//", "reput://two//"], {"ca_certs": "ca.pem", "cert_reqs": 2})
    assert options == {
        "address": ["one:1", "two:10911"],
        "tls": TLS(ca="ca.pem"),
        "credentials": Credentials("ann", "s@cret"),
    }
    with pytest.raises(ValueError, match="cert_reqs asks for certificates not to be checked"):
        client_options(["reput://one//"], {"cert_reqs": 0})
    with pytest.raises(ValueError, match="the TLS settings have ciphers; they may have ca_certs"):
        client_options(["reput://one//"], {"ciphers": "x"})


@pytest.mark.parametrize(
    ("routing_key", "fitting", "others"),
    [
        ("a.*", ["a.b", "a."], ["a", "a.b.c", "b.a"]),
        ("a.#", ["a", "a.b", "a.b.c"], ["b", "ab"]),
        ("#", ["", "a", "a.b"], []),
        ("#.z", ["z", "a.z", "a.b.z"], ["az", "z.a"]),
        ("a+b", ["a+b"], ["aab"]),
    ],
)
def test_patterns_of_topic_exchanges_are_those_of_amqp(routing_key: str, fitting: list[str], others: list[str]) -> None:
    binding = Binding("x", "topic", routing_key)
    assert [key for key in fitting + others if binding.fits(key)] == fitting


def test_names_of_queues_and_exchanges_become_different_topics() -> None:
    names = ["celery", "exchange%celery", "a.b", "a%2Eb", "ä", "%RETRY%x"]
    topics = [*map(queue_topic, names), *map(exchange_topic, names)]
    assert len({*topics}) == len(topics)
    with pytest.raises(ValueError, match="give it a shorter name"):
        queue_topic("." * 41)
