"""Reads that a slave answers while the master of its broker cannot be reached."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from reput_client.errors import ConnectFailed
from reput_client.transport.address import Address
from reput_client.transport.session import Session, is_not_master
from reput_protocol.codes import RequestCode
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import Value

log = logging.getLogger("reput_client")


async def standbys(session: Session, queue: MessageQueue, deadline: float) -> list[Address]:
    """Return the slaves of the queue's broker, if its master is not known or cannot be reached; else none."""
    name = queue.broker_name
    if session.brokers.master(name) is None and not session.brokers.slaves(name):
        await session.look_up(queue.topic, deadline)
    slaves = session.brokers.slaves(name)
    if not slaves:
        return []
    session.poll(to_the_end=True)  # a master that has gone is known to be gone
    master = session.brokers.master(name)
    if master is not None:
        try:
            await session.try_to_open(master, deadline, name)
            return []
        except ConnectFailed as error:
            log.info("%s: %s", queue, error)
    return [address for _, address in sorted(slaves.items())]


async def read(
    session: Session,
    code: RequestCode,
    ext: Mapping[str, Value],
    *,
    what: str,
    queue: MessageQueue,
    deadline: float,
) -> Call:
    """Ask the master of the queue's broker, or a slave if it cannot be reached; raises like `Session.ask`.

    A slave may lack the newest messages and commits.
    """
    for address in await standbys(session, queue, deadline):
        try:
            call = await session.ask(code, ext, what=what, address=address, deadline=deadline)
        except ConnectFailed as error:
            log.info("%s: not from the slave %s: %s", what, address, error)
            continue
        if not is_not_master(call):
            return call
    return await session.ask(code, ext, what=what, queue=queue, deadline=deadline)
