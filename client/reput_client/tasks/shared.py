"""For task frameworks: the clients of a process, the names of topics, and results as messages.

All threads of a process share the clients, and a forked child opens its own. A result has the task's id as key.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from reput_client.blocking import Admin, Producer
from reput_client.received import ReceivedMessage
from reput_protocol.codes import Ack
from reput_protocol.errors import TopicNotFound
from reput_protocol.names import GROUP_LENGTH_MAX
from reput_protocol.record.message import Message

T = TypeVar("T", bound="ProcessClients")

WAIT_MAX_S: Final = 3 * 86_400 - 3600
"""How long a task waits in the broker at a time: an hour less than the default of its `delay.timer_max_delay`."""


class ProcessClients:
    """They are connected on first use. Any thread may use them.

    Args:
        options: of the clients, with their address.
        group: the producer's group.
        ack: the producer's level.
        deduplicate: as of `Producer`.
    """

    def __init__(self, options: Mapping[str, Any], *, group: str, ack: Ack, deduplicate: bool | None = None) -> None:
        self._options = options
        self._group = group
        self._ack = ack
        self._deduplicate = deduplicate
        self._lock = threading.Lock()
        self._admin: Admin | None = None
        self._producer: Producer | None = None
        self._topics: set[str] = set()

    @property
    def admin(self) -> Admin:
        """Looks messages up, and creates topics."""
        with self._lock:
            if self._admin is None:
                self._admin = Admin(**self._options).__enter__()
            return self._admin

    @property
    def producer(self) -> Producer:
        """Sends tasks and results."""
        with self._lock:
            if self._producer is None:
                producer = Producer(
                    ack=self._ack,
                    group=self._group,
                    deduplicate=self._deduplicate,
                    create_topics=False,
                    **self._options,
                )
                self._producer = producer.__enter__()
            return self._producer

    def ensure_topic(self, topic: str, *, queues: int = 1, message_type: str | None = None) -> None:
        """Create a topic unless it exists; one that did is not asked for again.

        Raises:
            PermissionDenied: it does not exist, and the user may not create it.
        """
        if topic not in self._topics:
            self.admin.ensure_topic(topic, queues=queues, message_type=message_type)
            self._topics.add(topic)

    def forget_topic(self, topic: str) -> None:
        """Ask for a topic again, because it was deleted."""
        self._topics.discard(topic)

    def send(self, message: Message, *, queues: int = 1, message_type: str | None = None, **terms: Any) -> None:
        """Send a message to a topic that is created if it does not exist, also if it was deleted meanwhile.

        Args:
            queues, message_type: as of `ensure_topic`.
            terms: the arguments of `Producer.send`.

        Raises:
            ReputError: as of `Producer.send` and `ensure_topic`.
        """
        self.ensure_topic(message.topic, queues=queues, message_type=message_type)
        try:
            self.producer.send(message, **terms)
        except TopicNotFound:
            self.forget_topic(message.topic)
            self.ensure_topic(message.topic, queues=queues, message_type=message_type)
            self.producer.send(message, **terms)

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            if self._admin is not None:
                self._admin.close()
            if self._producer is not None:
                self._producer.close()


class PerProcess(Generic[T]):
    """The clients of this process by key; a forked child begins with none."""

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the clients of a key, which `make` makes if there are none."""
        with self._lock:
            if key not in self._clients:
                self._clients[key] = make()
            return self._clients[key]

    def close(self) -> None:
        """Disconnect all of them; the next use connects again."""
        with self._lock:
            clients = [*self._clients.values()]
            self._clients.clear()
        for each in clients:
            each.close()


def quoted(name: str) -> str:
    """Return a name with %XX for what names of topics cannot have."""
    # "." and "~" are the two that `quote` keeps and names of topics cannot have.
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")


def checked(topic: str, what: str) -> str:
    """Return the name of a topic.

    Raises:
        ValueError: it is too long for a group of the same name; the text has `what` and the remedy.
    """
    if len(topic) > GROUP_LENGTH_MAX:
        raise ValueError(
            f"the topic of {what} would have a name of {len(topic)} characters, and {GROUP_LENGTH_MAX} are the most; "
            "give it a shorter name (a character other than letters, digits, - and _ counts as three)"
        )
    return topic


def result_that_counts(newest_first: Iterable[ReceivedMessage], rank: Callable[[bytes], int]) -> bytes | None:
    """Return the body of the newest one of the results with the highest rank, or None without any.

    A task that has run twice, or states that were stored by several processes, leave several of them.

    Args:
        rank: higher for final results.
    """
    return max((message.body for message in newest_first), key=rank, default=None)
