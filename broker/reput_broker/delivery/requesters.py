"""Who waits for replies: where the client is that a reply names (RocketMQ: ProducerManager.findChannel).

A requester is known by its heartbeats as a producer. Clients that send their first request before their first
heartbeat, as RocketMQ's Go client does, are known by the connection that the request came on until then.
"""

from __future__ import annotations

from reput_broker.delivery.producer_groups import ProducerGroups
from reput_broker.request import Client
from reput_protocol import properties as names
from reput_protocol.names import RETRY_PREFIX
from reput_protocol.properties import decode_properties


class Requesters:
    """The connections of requesters by client id."""

    def __init__(self, producers: ProducerGroups) -> None:
        self._producers = producers
        self._by_id: dict[str, Client] = {}
        self._ids: dict[Client, str] = {}

    def sent(self, client: Client, topic: str, properties: str) -> None:
        """Note what a message that has come says of replies to it; most say nothing.

        A message on its way through a retry topic comes from its consumer. One connection is one client, so its last
        id counts.
        """
        if names.REPLY_TO_CLIENT not in properties or topic.startswith(RETRY_PREFIX):
            return
        found = decode_properties(properties.encode())
        client_id = found.get(names.REPLY_TO_CLIENT)
        if not client_id or found.get(names.MSG_TYPE) == names.MSG_TYPE_REPLY or client.is_closed:
            return
        if self._ids.get(client) != client_id:
            self.gone(client)
            self._ids[client] = client_id
        self._by_id[client_id] = client

    def find(self, client_id: str) -> Client | None:
        """Return the connection of the requester with this id, None if there is none."""
        channel = self._producers.find(client_id)
        if channel is not None and channel.producer_groups:
            return channel.client
        return self._by_id.get(client_id)

    def gone(self, client: Client) -> None:
        """Forget a connection that has ended; safe if it was none of a requester."""
        client_id = self._ids.pop(client, None)
        if client_id is not None and self._by_id.get(client_id) is client:
            del self._by_id[client_id]
