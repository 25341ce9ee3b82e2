"""Blocking clients survive errors of the operating system and of the application's sequences and handlers."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest

from reput_client import Message, ReceivedMessage, blocking
from reput_client.errors import ConnectFailed
from support.fakes import FakeBroker


class RowUnreadable(Exception):
    """An error of the application's database."""


class Rows(Sequence[Any]):
    """A table read row by row; its second row raises."""

    def __init__(self, first: object) -> None:
        self._first = first

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        if index:
            raise RowUnreadable
        return self._first


def no_descriptors() -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_connected_producer_needs_no_more_descriptors(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its first wait would close it when there are none left."""
    with blocking.Producer(broker.address) as producer:
        monkeypatch.setattr(socket, "socketpair", no_descriptors)
        posted = producer.post(Message("t", b"1"), queue_id=0)
        assert producer.send(Message("t", b"2"), queue_id=1).queue_offset == 0
        producer.flush()
        assert posted.result().queue_offset == 0


def test_a_producer_without_descriptors_for_its_waits_does_not_connect(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socketpair", no_descriptors)
    with pytest.raises(ConnectFailed, match="Too many open files"), blocking.Producer(broker.address):
        pytest.fail("it has connected")


@pytest.mark.parametrize(
    "send",
    [
        lambda producer: producer.send_many("t", Rows(b"x")),
        lambda producer: producer.send_many("t", [b"x", b"y"], tags=Rows("tag")),
        lambda producer: producer.send_many("t", [b"x", b"y"], keys=Rows(["key"])),
        lambda producer: producer.send_batch(Rows(Message("t", b"x"))),
    ],
    ids=["send_many", "tags", "keys", "send_batch"],
)
def test_an_unreadable_row_of_the_application_closes_no_producer(
    broker: FakeBroker, send: Callable[[blocking.Producer], object]
) -> None:
    with blocking.Producer(broker.address) as producer:
        with pytest.raises(RowUnreadable):
            send(producer)
        assert producer.send(Message("t", b"x"), queue_id=0).queue_id == 0


class AsyncHandler:
    async def __call__(self, message: ReceivedMessage) -> None:
        raise AssertionError("it is not awaited")


@pytest.mark.parametrize("handler", [AsyncHandler().__call__, AsyncHandler()], ids=["method", "object"])
@pytest.mark.parametrize("kind", [blocking.Consumer, blocking.PopConsumer])
def test_a_coroutine_function_handles_no_message(
    real_address: str,
    request: pytest.FixtureRequest,
    kind: type[blocking.Consumer | blocking.PopConsumer],
    handler: Any,
) -> None:
    """Its coroutine would never run, and the message would count as handled."""
    topic = f"plain-{request.node.callspec.id}"
    with blocking.Producer(real_address) as producer:
        producer.send(Message(topic, b"1"))
    with kind(real_address, group=topic, topic=topic) as consumer:
        with pytest.raises(TypeError, match="is a coroutine function"):
            consumer.run(handler)
        bodies: list[bytes] = []

        def note(message: ReceivedMessage) -> None:
            bodies.append(message.body)
            consumer.stop()

        consumer.run(note)
    assert bodies == [b"1"]


@pytest.mark.parametrize("kind", [blocking.Consumer, blocking.PopConsumer])
def test_a_handler_takes_the_message(broker: FakeBroker, kind: type[blocking.Consumer | blocking.PopConsumer]) -> None:
    def callback(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        raise AssertionError((channel, method, properties, body))

    handlers: Any = {"as its only argument": callback, "NoneType": None}
    with kind(broker.address, group="g", topic="t", orderly=False) as consumer:
        for says, handler in handlers.items():
            with pytest.raises(TypeError, match=says):
                consumer.run(handler)
