"""The clients that all threads of a process share for the result backend.

Celery makes a backend for each thread that calls tasks, and does not tell when the thread has ended.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

from reput_client.tasks.celery.arriving import Arrivals
from reput_client.tasks.process_clients import PerProcess, ProcessClients
from reput_protocol.codes import Ack


class SharedClients(ProcessClients):
    """They are connected on first use, until `close_clients` or the end of the process. Any thread may use them."""

    def __init__(self, topic: str, ack: Ack, options: Mapping[str, Any]) -> None:
        super().__init__(options, group="celery-results", ack=ack)
        self.arrivals = Arrivals(topic, options)

    def close(self) -> None:
        """Disconnect."""
        self.arrivals.close()
        super().close()


_process: Final[PerProcess[SharedClients]] = PerProcess()


def shared_clients(key: Hashable, topic: str, ack: Ack, options: Mapping[str, Any]) -> SharedClients:
    """Return this process's clients for `key`, which stands for all arguments."""
    return _process.get(key, lambda: SharedClients(topic, ack, options))


def close_clients() -> None:
    """Disconnect what the result backends of this process have; the next use of a backend connects again.

    Results that are waited for meanwhile are not received any more, but looked up each second.
    """
    _process.close()
