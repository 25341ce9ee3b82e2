"""A blocking producer survives errors of the operating system and of the application's sequences."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest

from reput_client import Message, blocking
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


def test_a_connected_producer_needs_no_more_descriptors(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
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
