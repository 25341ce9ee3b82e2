"""The connections of the clients that wait for replies, by client id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reput_broker.groups.client_table import ClientTable
from reput_broker.remoting.request import Client
from reput_protocol import properties as names
from reput_protocol.buffers import Buffer
from reput_protocol.kernel.records import properties_have_any, record_starts
from reput_protocol.properties import decode_properties
from reput_protocol.record.layout import properties_of, size_at

_ASKS: Final = (names.REPLY_TO_CLIENT.encode() + b"\x01",)


class Requesters:
    """The connections of requesters by client id (RocketMQ: ProducerManager.findChannel).

    A requester is known by its heartbeats as a producer. Clients that send a request before the first one, as
    RocketMQ's Go client does, are known by that request's connection until then.
    """

    def __init__(self, clients: ClientTable) -> None:
        self._clients = clients

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
