"""Bugs to plant in the Celery program's transport, so that the judge can prove that it would notice them."""

from __future__ import annotations

import itertools
from typing import Any, Final

from reput_client.tasks.celery.receiving import SharedQueue
from reput_client.tasks.celery.transport import Channel
from support.planted_bugs import Bug, table_of

_EACH: Final = 50


def ack_not_sent() -> None:
    """each fiftieth acknowledgement of a process is not sent"""
    real, numbers = SharedQueue.done, itertools.count(1)

    def done(self: SharedQueue, message: Any) -> None:
        message.is_given_back = message.is_given_back or next(numbers) % _EACH == 0
        real(self, message)

    SharedQueue.done = done  # type: ignore[method-assign]


def task_not_sent() -> None:
    """each fiftieth task of a process is not sent"""
    _send_times(0)


def task_sent_twice() -> None:
    """each fiftieth task of a process is sent twice"""
    _send_times(2)


def _send_times(times: int) -> None:
    real, numbers = Channel._send, itertools.count(1)

    def send(self: Channel, topic: str, tag: str, payload: Any) -> None:
        for _ in range(times if next(numbers) % _EACH == 0 else 1):
            real(self, topic, tag, payload)

    Channel._send = send  # type: ignore[method-assign]


BUGS: Final = table_of(map(Bug, (ack_not_sent, task_not_sent, task_sent_twice)))
