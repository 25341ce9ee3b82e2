"""The clients of one Kombu connection, their options by its URLs and settings, and what it has declared with them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from kombu.utils.url import parse_url

from reput_client.blocking import Admin, Producer
from reput_client.security import TLS, Credentials
from reput_client.tasks.celery.receiving import Inbox, TransientQueue
from reput_client.tasks.shared import WAIT_MAX_S
from reput_client.transport.address import DEFAULT_PORT
from reput_protocol.commands.group_description import GroupQueue
from reput_protocol.errors import GroupNotFound, TopicNotFound
from reput_protocol.record.message import MessageQueue

_INVISIBLE_S: Final = 60.0


class ConnectionClients:
    """What the channels of one connection share; any thread may use it.

    Args:
        options: arguments of all clients: the addresses, and how to connect.
        transport_options: those of Kombu; docs/celery.md has them.

    Attributes:
        inbox: what the connection's thread is to deliver; once it is open.
        transient: readers of the transient queues, by name.
        invisible_s: how long a received message is invisible unless that is extended.
        wait_max_s: how long a message may be delayed at a time.
    """

    def __init__(self, options: Mapping[str, Any], transport_options: Mapping[str, Any]) -> None:
        self.options = options
        self.transient: dict[str, TransientQueue] = {}
        self.invisible_s: float = transport_options.get("invisible_s", _INVISIBLE_S)
        self.wait_max_s: float = transport_options.get("wait_max_s", WAIT_MAX_S)
        self._ack = transport_options.get("ack", "flushed")
        self._timeout_s: float | None = transport_options.get("timeout_s")
        # Only with the present URL: if that cannot be reached, Kombu goes on with the next one.
        self._admin = Admin(**{**options, "address": options["address"][:1]})
        self._producer: Producer | None = None
        self._topics: set[str] = set()
        self._lock = Lock()
        self._pid = os.getpid()

    def open(self) -> None:
        """Connect; raises `ConnectFailed`."""
        self._admin.__enter__()
        self.inbox = Inbox()

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked child, whose parent has the threads and the messages."""
        return os.getpid() != self._pid

    def close(self) -> None:
        """End the transient queues, and disconnect; in a forked child, do nothing."""
        if self.is_forked:
            return
        for reader in self.transient.values():
            reader.close()
        self.transient.clear()
        self._admin.close()
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
        self.inbox.close()

    @property
    def producer(self) -> Producer:
        """The producer, which is connected on first use."""
        with self._lock:
            if self._producer is None:
                options = dict(self.options)
                if self._timeout_s is not None:
                    options["timeout_s"] = self._timeout_s
                self._producer = Producer(ack=self._ack, group="kombu", create_topics=False, **options).__enter__()
            return self._producer

    # -- declarations ------------------------------------------------------------------------------------------

    def has_topic(self, topic: str) -> bool:
        """Whether a topic exists; one that did is not asked for again."""
        if topic in self._topics:
            return True
        if not topic:
            return False
        try:
            self._admin.topic_config(topic)
        except TopicNotFound:
            return False
        self._topics.add(topic)
        return True

    def ensure_topic(self, topic: str, *, queues: int, message_type: str | None = None) -> None:
        """Create a topic unless it exists.

        Raises:
            PermissionDenied: it does not, and the user may not create it.
        """
        with self._lock:
            if topic not in self._topics:
                self._admin.ensure_topic(topic, queues=queues, message_type=message_type)
                self._topics.add(topic)

    def forget(self, topic: str) -> None:
        """Ask for a topic again, because it was deleted."""
        self._topics.discard(topic)

    def begin_at_end(self, group: str, topic: str) -> None:
        """Let a group that has no progress in a topic begin with what comes from now on."""
        for queue, bounds in self._admin.topic_stats(topic).offset_table.items():
            at = {"broker_name": queue.broker_name}
            if self._admin.committed_offset(group, topic, queue.queue_id, **at) is None:
                self._admin.commit_offset(group, topic, queue.queue_id, bounds.max_offset, **at)

    def ready(self, group: str) -> int:
        """Return how many messages of a queue nothing has received, redelivered ones among them."""
        return sum(each.lag for each in self._progress(group))

    def skip_all(self, group: str) -> int:
        """Let a group continue at the end of all its topics; return how many messages it skips."""
        progress = self._progress(group)
        ends = {MessageQueue(each.topic, each.broker_name, each.queue_id): each.end_offset for each in progress}
        try:
            self._admin.set_offsets(group, ends)
        except GroupNotFound:  # nothing was ever received
            for queue, end in ends.items():
                self._admin.commit_offset(group, queue.topic, queue.queue_id, end, broker_name=queue.broker_name)
        return sum(each.lag for each in progress)

    def _progress(self, group: str) -> list[GroupQueue]:
        """Return the progress of a group in all its topics; in the queue's own topic it may have none yet."""
        try:
            progress = self._admin.describe_group(group).queues
        except GroupNotFound:
            progress = []
        if all(each.topic != group for each in progress):
            with suppress(TopicNotFound):
                progress += [
                    GroupQueue(
                        topic=group,
                        queue_id=queue.queue_id,
                        start_offset=bounds.min_offset,
                        end_offset=bounds.max_offset,
                        broker_name=queue.broker_name,
                    )
                    for queue, bounds in self._admin.topic_stats(group).offset_table.items()
                ]
        return progress

    def delete(self, topic: str, *, group: bool = True) -> None:
        """Delete a topic, and the group of the same name."""
        self._topics.discard(topic)
        self._admin.delete_topic(topic)
        if group:
            self._admin.delete_group(topic)


_TLS_NAMES: Final = {"ca_certs": "ca", "certfile": "cert", "keyfile": "key", "server_hostname": "server_name"}
_REQUIRED: Final = (2, "required", "CERT_REQUIRED")


def client_options(urls: Iterable[str], ssl: Mapping[str, Any] | bool | None) -> dict[str, Any]:
    """Return the arguments of clients for URLs such as `reput://user:secret@host:port//`.

    All are addresses of one cluster; the user is that of the first one.

    Raises:
        ValueError: the TLS settings are not known, or ask for certificates not to be checked.
    """
    parsed = [parse_url(url) for url in urls]
    addresses = [f"{each['hostname'] or '127.0.0.1'}:{each['port'] or DEFAULT_PORT}" for each in parsed]
    options: dict[str, Any] = {"address": [*dict.fromkeys(addresses)], "tls": _tls(ssl)}
    if parsed[0]["userid"]:
        options["credentials"] = Credentials(parsed[0]["userid"], parsed[0]["password"] or "")
    return options


def _tls(ssl: Mapping[str, Any] | bool | None) -> TLS | None:
    if not ssl:
        return None
    given = {} if ssl is True else {name: value for name, value in dict(ssl).items() if value is not None}
    unknown = given.keys() - _TLS_NAMES.keys() - {"cert_reqs"}
    if unknown:
        raise ValueError(f"the TLS settings have {', '.join(sorted(unknown))}; they may have {', '.join(_TLS_NAMES)}")
    if given.pop("cert_reqs", _REQUIRED[0]) not in _REQUIRED:
        raise ValueError(
            "cert_reqs asks for certificates not to be checked; leave it out, and give ca_certs= for a certificate of "
            "your own authority"
        )
    return TLS(**{_TLS_NAMES[name]: value for name, value in given.items()})
