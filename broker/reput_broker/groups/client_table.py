"""The clients that have sent a heartbeat (RocketMQ: ClientChannelInfo).

One connection is one client. Its groups refer to it by the connection too, so that everything about it is removed with
that.

An id belongs to the user of its open connections; without access control, to their address. So a client may have
several connections, and reconnect before the end of the first is noticed; but no other user receives what is sent to
the id: replies, checks of transactions, changes of its groups. `Requesters` finds those that wait for replies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from reput_broker.remoting.request import Client, Refusal
from reput_protocol import properties as names
from reput_protocol.buffers import Buffer
from reput_protocol.codes import LanguageCode
from reput_protocol.errors import ErrorCode
from reput_protocol.kernel.records import properties_have_any, record_starts
from reput_protocol.properties import decode_properties
from reput_protocol.record.layout import properties_of, size_at

_ASKS: Final = (names.REPLY_TO_CLIENT.encode() + b"\x01",)


def owner_of(client: Client) -> str:
    """Return whose the ids of a connection are: its user's; without access control, its address's."""
    if client.principal is not None:
        return f"user {client.principal.name!r}"
    return "this machine" if client.is_local else f"address {client.peer.rpartition(':')[0]}"


class ClientChannel:
    """One client, as its heartbeats describe it.

    `language` is a number of `LanguageCode`, `version` the client's own; `last_heartbeat` is in
    seconds of the registering table's clock. `consumer_groups` and `producer_groups` are kept by
    their tables: the client's groups, each with the bytes held for it.
    """

    __slots__ = ("client", "client_id", "consumer_groups", "language", "last_heartbeat", "producer_groups", "version")

    def __init__(self, client: Client, client_id: str, language: int, version: int, last_heartbeat: float) -> None:
        self.client = client
        self.client_id = client_id
        self.language = language
        self.version = version
        self.last_heartbeat = last_heartbeat
        self.consumer_groups: dict[str, int] = {}
        self.producer_groups: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        """Approximate number of bytes held for the client's groups."""
        return sum(self.consumer_groups.values()) + sum(self.producer_groups.values())

    @property
    def language_name(self) -> str:
        """The language's name in RocketMQ's tools."""
        try:
            return LanguageCode(self.language).name
        except ValueError:
            return LanguageCode.OTHER.name

    def __repr__(self) -> str:
        return f"ClientChannel({self.client_id!r}, {self.client.peer!r})"


class ClientTable:
    """The clients by connection and by id."""

    def __init__(self) -> None:
        self._by_client: dict[Client, ClientChannel] = {}
        self._by_id: dict[str, dict[Client, None]] = {}
        self._requesters: dict[Client, str] = {}

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Iterator[ClientChannel]:
        return iter(list(self._by_client.values()))

    def check_owner(self, client: Client, client_id: str) -> None:
        """Check that no open connection of another user, or address, has an id.

        Raises:
            Refusal: NO_PERMISSION, or INVALID_ARGUMENT without access control. It does not name the other one.
        """
        if self.is_of_another(client, client_id):
            whose = owner_of(client)
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT if client.principal is None else ErrorCode.NO_PERMISSION,
                f"client id {client_id!r} belongs to an open connection that is not of {whose}; "
                "give each client its own id, or close the other one",
            )

    def is_of_another(self, client: Client, client_id: str) -> bool:
        """Whether an open connection of another user, or address, has an id."""
        holders = self._by_id.get(client_id)
        if holders is None or holders.keys() == {client}:
            return False
        owner = owner_of(client)
        return any(other is not client and not other.is_closed and owner_of(other) != owner for other in holders)

    def heard(self, client: Client, client_id: str, language: int, version: int, now: float) -> ClientChannel:
        """Record a heartbeat and return the client.

        The connection must not belong to another client id: `gone` is called first.
        """
        channel = self._by_client.get(client)
        if channel is None:
            channel = self._by_client[client] = ClientChannel(client, client_id, language, version, now)
        else:
            assert channel.client_id == client_id, "`gone` is called first"
            channel.language, channel.version, channel.last_heartbeat = language, version, now
        self._hold(client, client_id)
        return channel

    def requested(self, client: Client, client_id: str) -> None:
        """Record that a connection has sent a request message, whose reply goes to an id.

        One connection is one client, so its last id counts.
        """
        if self._requesters.get(client) != client_id:
            self._release(client, self._requesters.pop(client, None))
            self._requesters[client] = client_id
        self._hold(client, client_id)

    def _hold(self, client: Client, client_id: str) -> None:
        """Make a connection the latest one with an id."""
        holders = self._by_id.setdefault(client_id, {})
        holders.pop(client, None)
        holders[client] = None

    def _release(self, client: Client, client_id: str | None) -> None:
        """Take an id from a connection that is neither its client's nor its requester's any more."""
        channel = self._by_client.get(client)
        is_clients = channel is not None and channel.client_id == client_id
        if client_id is None or is_clients or self._requesters.get(client) == client_id:
            return
        holders = self._by_id.get(client_id, {})
        holders.pop(client, None)
        if not holders:
            self._by_id.pop(client_id, None)

    def get(self, client: Client) -> ClientChannel | None:
        """Return the client of a connection; None before its first heartbeat."""
        return self._by_client.get(client)

    def find(self, client_id: str) -> ClientChannel | None:
        """Return the connected client with this id, the latest of several; None if there is none."""
        for client in reversed(self._by_id.get(client_id, {})):
            channel = self._by_client.get(client)
            if channel is not None and channel.client_id == client_id:
                return channel
        return None

    def requester(self, client_id: str) -> Client | None:
        """Return the connection to which replies for this id are sent; None if there is none.

        A client that sends a request before its first heartbeat as a producer is known by that request.
        """
        for client in reversed(self._by_id.get(client_id, {})):
            channel = self._by_client.get(client)
            if channel is not None and channel.client_id == client_id and channel.producer_groups:
                return client
        return next(
            (
                client
                for client in reversed(self._by_id.get(client_id, {}))
                if self._requesters.get(client) == client_id
            ),
            None,
        )

    def gone(self, client: Client) -> ClientChannel | None:
        """Remove a closed connection; return its client, if any."""
        channel, requester = self._by_client.pop(client, None), self._requesters.pop(client, None)
        self._release(client, requester)
        self._release(client, None if channel is None else channel.client_id)
        return channel


@dataclass(eq=False, repr=False)
class Requesters:
    """The connections of requesters by client id (RocketMQ: ProducerManager.findChannel).

    A requester is known by its heartbeats as a producer. Clients that send a request before the first one, as
    RocketMQ's Go client does, are known by that request's connection until then.
    """

    _clients: ClientTable

    def sent(self, client: Client, block: Buffer) -> None:
        """Record the requesters that the records of a block name, if any.

        Without access control the id of a client at another address is ignored, since a program that copies messages
        keeps it. Of an invalid block, which the store refuses, only the records before the first invalid one count.

        Raises:
            Refusal: NO_PERMISSION: an id belongs to a client of another user, who would receive the reply. An
                administrator is not refused.
        """
        if not properties_have_any(block, _ASKS) or client.is_closed:
            return
        for client_id in _requesters_in(block):
            if not _may_copy(client):
                self._clients.check_owner(client, client_id)
            if not self._clients.is_of_another(client, client_id):
                self._clients.requested(client, client_id)

    def drop_foreign(self, client: Client, properties: dict[str, str]) -> None:
        """Remove a requester that is a client of another user from the properties of a message.

        It is for messages that a consumer sends to a retry topic without proof that it has received them: refused, the
        consumer could never get rid of one that it has.
        """
        client_id = properties.get(names.REPLY_TO_CLIENT, "")
        if not _may_copy(client) and self._clients.is_of_another(client, client_id):
            del properties[names.REPLY_TO_CLIENT]

    def find(self, client_id: str) -> Client | None:
        """Return the connection of the requester with this id; None if there is none."""
        return self._clients.requester(client_id)


def _may_copy(client: Client) -> bool:
    """Whether a client may store the requests of others: an administrator replays their dead letters."""
    return client.principal is None or client.principal.is_admin


def _requesters_in(block: Buffer) -> Iterator[str]:
    """Yield the clients to which replies to the requests in a block are pushed."""
    for start in record_starts(block, 0, len(block)):
        text = properties_of(block, start, size_at(block, start))
        if text is None:
            return
        found = decode_properties(text)
        client_id = found.get(names.REPLY_TO_CLIENT)
        if client_id and found.get(names.MSG_TYPE) != names.MSG_TYPE_REPLY:
            yield client_id
