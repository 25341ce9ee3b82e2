"""The Kombu transport `reput://user:secret@host:port//`."""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version
from typing import Any

from kombu.transport import base, virtual

from reput_client.errors import ClientClosed, ConnectFailed
from reput_client.tasks.celery.channel import Channel
from reput_client.tasks.celery.clients import ConnectionClients
from reput_client.tasks.celery.connecting import client_options
from reput_client.transport.address import DEFAULT_PORT
from reput_protocol.errors import ReputError


class Transport(virtual.Transport):
    """Kombu's view of brokers; docs/celery.md has the options.

    Of several URLs, all are the client's addresses, so that it continues with another broker by itself.
    """

    Channel = Channel
    default_port = DEFAULT_PORT
    driver_type = "reput"
    driver_name = "reput-client"
    connection_errors = (*base.Transport.connection_errors, ConnectFailed, ClientClosed, OSError)
    channel_errors = (*base.Transport.channel_errors, ReputError)
    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def driver_version(self) -> str:
        """Return the client's version."""
        return version("reput-client")

    @cached_property
    def client_options(self) -> dict[str, Any]:
        """The addresses and how to connect, for the clients of this connection."""
        client = self.client
        present = f"{client.hostname or '127.0.0.1'}:{client.port or DEFAULT_PORT}"
        options = client_options([*client.alt] or [client.as_uri(include_password=True)], client.ssl)
        options["address"] = [*dict.fromkeys([present, *options["address"]])]
        return options

    # -- life --------------------------------------------------------------------------------------------------

    def establish_connection(self) -> Transport:
        """Connect; raises `ConnectFailed`."""
        self.clients = ConnectionClients(self.client_options, self.client.transport_options or {})
        self.clients.open()
        return self

    def create_channel(self, connection: Transport) -> Any:
        """Return a new channel."""
        channel = self.Channel(connection)
        self.channels.append(channel)
        return channel

    def close_connection(self, connection: Transport) -> None:
        """Close the channels and the clients; what is not settled is given back."""
        for channel in [*self.channels]:
            channel.close()
        self.clients.close()

    # -- events ------------------------------------------------------------------------------------------------

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver what was received, after up to `timeout` seconds.

        Raises:
            TimeoutError: nothing was received.
        """
        if not self.clients.inbox.deliver(timeout):
            raise TimeoutError

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        """Let Celery's event loop deliver messages."""
        loop.add_reader(self.clients.inbox.fileno(), self.on_readable)

    def unregister_from_event_loop(self, connection: Transport, loop: Any) -> None:
        """Undo `register_with_event_loop`."""
        loop.remove_reader(self.clients.inbox.fileno())

    def on_readable(self) -> None:
        """Deliver what was received."""
        self.clients.inbox.deliver(0)
