"""Pulls that go to a slave: because the master suggests it, or because it cannot be reached.

(RocketMQ: PullAPIWrapper, pullFromWhichNodeTable.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from reput_client.consume.pull import MessageSelector, PullResult, PullStatus, pull_result
from reput_client.transport.address import Address
from reput_client.transport.routing import MASTER_ID
from reput_client.transport.session import Session
from reput_client.transport.standbys import ask_slave, standbys
from reput_protocol.codes import RequestCode
from reput_protocol.errors import BrokerError
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import Value

log = logging.getLogger("reput_client")


class SlavePulls:
    """The queues of a pull consumer that are read from a slave at the moment."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._suggested: dict[MessageQueue, int] = {}

    def suggested(self, queue: MessageQueue, result: PullResult) -> None:
        """Note which member of the queue's broker its answer suggests."""
        if result.suggested_broker_id != MASTER_ID:
            self._suggested[queue] = result.suggested_broker_id
        elif self._suggested:
            self._suggested.pop(queue, None)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        ext: Callable[[], Mapping[str, Value]],
        wanted: MessageSelector,
        what: str,
        deadline: float,
        until: float,
    ) -> PullResult | None:
        """Pull from a slave; None if the master is to be asked, or if no slave has the messages.

        Args:
            ext: returns the header of the pull, as of now.
            deadline, until: for connecting, and for the answer.
        """
        for address in await self._slaves(queue, deadline):
            call = await ask_slave(
                self._session,
                address,
                RequestCode.PULL_MESSAGE,
                ext(),
                what=what,
                queue=queue,
                deadline=deadline,
                until=until,
            )
            if call is None:
                continue
            try:
                result = pull_result(queue, offset, call, wanted)
            except BrokerError as error:
                log.info("%s: not from the slave %s: %s", what, address, error)
                continue
            # A slave may not have these messages yet; then only the master knows what follows.
            if result.status is not PullStatus.OFFSET_ILLEGAL and result.next_begin_offset >= offset:
                self.suggested(queue, result)
                return result
        self._suggested.pop(queue, None)
        return None

    async def _slaves(self, queue: MessageQueue, deadline: float) -> list[Address]:
        """Return the slaves to ask instead of the master."""
        session = self._session
        suggested = session.brokers.address(queue.broker_name, self._suggested.get(queue, MASTER_ID))
        if queue in self._suggested and suggested is not None:
            return [suggested]
        return await standbys(session, queue, deadline)
