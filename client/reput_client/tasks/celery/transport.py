"""The Kombu transport `reput://user:secret@host:port//`."""

from __future__ import annotations

import os
import threading
from functools import cached_property
from importlib.metadata import version
from typing import Any, Final

from kombu.transport import base, virtual

from reput_client.blocking import Producer
from reput_client.errors import ClientClosed, ConnectFailed
from reput_client.tasks.celery.channel import Channel
from reput_client.tasks.celery.connecting import PORT, client_options
from reput_client.tasks.celery.declared import Declared
from reput_client.tasks.celery.receiving import Inbox
from reput_protocol.errors import ReputError

_WAIT_MAX_S: Final = 3 * 86_400 - 3600
"""An hour less than the default of the broker's `delay.timer_max_delay`."""
_INVISIBLE_S: Final = 60.0


class Transport(virtual.Transport):
    """Kombu's view of brokers; docs/celery.md has the options.

    Of several URLs, all are the client's addresses, so that it goes on with another broker by itself.

    """

    Channel = Channel
    default_port = PORT
    driver_type = "reput"
    driver_name = "reput-client"
    connection_errors = (*base.Transport.connection_errors, ConnectFailed, ClientClosed, OSError)
    channel_errors = (*base.Transport.channel_errors, ReputError)
    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options = dict(client.transport_options or {})
        self.invisible_s: float = options.get("invisible_s", _INVISIBLE_S)
        self.wait_max_s: float = options.get("wait_max_s", _WAIT_MAX_S)
        self._ack = options.get("ack", "flushed")
        self._timeout_s: float | None = options.get("timeout_s")
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._producer: Producer | None = None

    def driver_version(self) -> str:
        """Return the client's version."""
        return version("reput-client")

    @cached_property
    def client_options(self) -> dict[str, Any]:
        """The addresses and how to connect, for the clients of this connection."""
        client = self.client
        present = f"{client.hostname or '127.0.0.1'}:{client.port or PORT}"
        options = client_options([*client.alt] or [client.as_uri(include_password=True)], client.ssl)
        options["address"] = [*dict.fromkeys([present, *options["address"]])]
        return options

    # -- life --------------------------------------------------------------------------------------------------

    def establish_connection(self) -> Transport:
        """Connect; raises `ConnectFailed`."""
        # Only with the present URL: if that cannot be reached, Kombu goes on with the next one.
        self.declared = Declared({**self.client_options, "address": self.client_options["address"][:1]})
        self.declared.open()
        self.inbox = Inbox()
        return self

    @property
    def producer(self) -> Producer:
        """The producer of this connection."""
        with self._lock:
            if self._producer is None:
                options = dict(self.client_options)
                if self._timeout_s is not None:
                    options["timeout_s"] = self._timeout_s
                self._producer = Producer(
                    ack=self._ack, group="kombu", create_topics=False, **options
                ).__enter__()
            return self._producer

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked child, whose parent has the threads and the messages."""
        return os.getpid() != self._pid

    def consumes(self, queue: str) -> bool:
        """Whether any channel has a consumer of a queue."""
        return any(channel.consumes(queue) for channel in self.channels)

    def create_channel(self, connection: Transport) -> Any:
        """Return a new channel."""
        channel = self.Channel(connection)
        self.channels.append(channel)
        return channel

    def close_connection(self, connection: Transport) -> None:
        """Close the channels and the clients; what is not settled is given back."""
        for channel in [*self.channels]:
            channel.close()
        if self.is_forked:
            return
        self.declared.close()
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
        self.inbox.close()

    # -- events ------------------------------------------------------------------------------------------------

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver what was received, after up to `timeout` seconds.

        Raises:
            TimeoutError: nothing was received.
        """
        if not self.inbox.deliver(timeout):
            raise TimeoutError

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        """Let Celery's event loop deliver messages."""
        loop.add_reader(self.inbox.fileno(), self.on_readable)

    def unregister_from_event_loop(self, connection: Transport, loop: Any) -> None:
        """Undo `register_with_event_loop`."""
        loop.remove_reader(self.inbox.fileno())

    def on_readable(self) -> None:
        """Deliver what was received."""
        self.inbox.deliver(0)
