"""Ends memberships: brokers then share out queues, or ask other members, without waiting for a missed heartbeat."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from reput_client.transport.address import Address
from reput_client.transport.session import Session
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import UnregisterClientHeader
from reput_protocol.errors import ReputError
from reput_protocol.wire.header import HeaderType

log = logging.getLogger("reput_client")


async def unregister(
    session: Session, header: UnregisterClientHeader, brokers: Iterable[tuple[object, Address]], timeout_s: float
) -> None:
    """Unregister from brokers, one after the other; never raises.

    Args:
        header: of a consumer group or a producer group.
        brokers: what the log calls each, and its address.
        timeout_s: of each request.
    """
    group = header.consumer_group or header.producer_group
    for name, address in brokers:
        try:
            await session.ask(
                RequestCode.UNREGISTER_CLIENT,
                header.to_ext(HeaderType.MSGPACK),
                what=f"leaving {group}",
                address=address,
                deadline=session.deadline(timeout_s),
            )
        except ReputError as error:
            kind = "group" if header.consumer_group else "producer group"
            log.warning("%s %s: not unregistered at %s: %s", kind, group, name, error)
