"""Reads that a slave answers while the master of its broker cannot be reached."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from reput_client.errors import BrokerNotFound, ConnectFailed
from reput_client.transport.address import Address
from reput_client.transport.session import Session, is_not_master
from reput_protocol.codes import RequestCode
from reput_protocol.errors import NotMaster
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import Value

T = TypeVar("T")

log = logging.getLogger("reput_client")


async def standbys(session: Session, queue: MessageQueue, deadline: float) -> list[Address]:
    """Return the slaves of the queue's broker, if its master is not known or cannot be reached; else none.

    If none is known then, the broker's members are looked up.
    """
    name = queue.broker_name
    master = session.brokers.masters.get(name)
    if session.brokers.slaves.get(name):
        session.poll(to_the_end=True)  # a master that has gone is known to be gone
    elif master is not None and session.connection_to(master).is_open:
        return []
    if master is not None and await _reaches_master(session, master, name, deadline):
        return []
    if not session.brokers.slaves.get(name) and (master != session.home or session.home.others):
        await session.look_for_master(queue.topic, deadline)
        master = session.brokers.masters.get(name)
        if master is not None and await _reaches_master(session, master, name, deadline):
            return []
    return [address for _, address in sorted(session.brokers.slaves.get(name, {}).items())]


async def _reaches_master(session: Session, master: Address, name: str, deadline: float) -> bool:
    if session.connection_to(master).is_resting and session.brokers.slaves.get(name):
        return False  # it may be stuck, and each attempt would take a second
    try:
        connection = await session.try_to_open(master, deadline, name)
    except ConnectFailed as error:
        log.info("master of %s: %s", name, error)
        return False
    # Of several addresses, another broker may answer.
    return connection.is_of(name) and connection.is_master


async def from_slave_or_master(
    session: Session,
    queue: MessageQueue,
    deadline: float,
    from_slave: Callable[[Address], Awaitable[T | None]],
    from_master: Callable[[bool], Awaitable[T]],
    suggested: Address | None = None,
) -> T:
    """Read from a slave, or from the master if no slave returns anything; once more if the master has gone meanwhile.

    Args:
        deadline: for connecting.
        from_slave: called with the address of each slave to ask, until one returns something.
        from_master: its argument is whether to wait for a master until the deadline.
        suggested: a slave to ask first, whether the master can be reached or not.
    """
    for patient in (False, True):
        slaves = [suggested] if suggested and not patient else await standbys(session, queue, deadline)
        for address in slaves:
            found = await from_slave(address)
            if found is not None:
                return found
        try:
            return await from_master(patient)
        except (BrokerNotFound, ConnectFailed, NotMaster):
            if patient:
                raise
    raise AssertionError("the last attempt returns or raises")


async def ask_slave(
    session: Session,
    address: Address,
    code: RequestCode,
    ext: Mapping[str, Value],
    *,
    what: str,
    queue: MessageQueue,
    deadline: float,
    until: float,
) -> Call | None:
    """Ask a slave of the queue's broker; None if it cannot be reached, or leaves the request to its master.

    Args:
        deadline, until: for connecting, and for the answer.
    """
    try:
        await session.try_to_open(address, deadline, queue.broker_name)
        call = await session.ask(code, ext, what=what, address=address, deadline=until)
    except ConnectFailed as error:
        log.info("%s: not from the slave %s: %s", what, address, error)
        return None
    return None if is_not_master(call) else call


async def read(
    session: Session, code: RequestCode, ext: Mapping[str, Value], *, what: str, queue: MessageQueue, deadline: float
) -> Call:
    """Ask the master of the queue's broker, or a slave if it cannot be reached; raises like `Session.ask`.

    A slave may lack the newest messages and commits.
    """

    return await from_slave_or_master(
        session,
        queue,
        deadline,
        lambda address: ask_slave(
            session, address, code, ext, what=what, queue=queue, deadline=deadline, until=deadline
        ),
        lambda patient: session.ask(code, ext, what=what, queue=queue, deadline=deadline, patient=patient),
    )
