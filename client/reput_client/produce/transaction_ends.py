"""Telling a broker how a transaction ended: 37 (RocketMQ: DefaultMQProducerImpl.endTransaction).

It may be told twice, also by two producers: what comes first counts, and the same once more changes nothing. So a
request whose answer was lost is simply repeated. RocketMQ's clients want no answer; here it says whether the broker
has heard.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from reput_client.transport.address import Address
from reput_client.transport.session import Session
from reput_protocol.codes import RequestCode
from reput_protocol.commands_transaction import EndTransactionHeader
from reput_protocol.errors import ReputError, TransactionEnded
from reput_protocol.group_terms import TransactionState
from reput_protocol.header import HeaderType

log = logging.getLogger("reput_client")


class HalfPlace(NamedTuple):
    """A half message as a broker has to be told of it: where it lies, and what it is."""

    address: Address
    queue_offset: int
    """Its offset in the half queue."""
    physical_offset: int
    topic: str
    unique_id: str


class TransactionEnds:
    """Ends transactions of one producer group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def end(self, half: HalfPlace, state: TransactionState, *, from_check: bool = False) -> bool:
        """Tell the broker that has the half message; return whether it has taken it as said.

        That it has not, because it could not be reached for instance, is logged and no error: it will ask.

        Args:
            from_check: this answers a question of the broker.

        Raises:
            TransactionEnded: the transaction has been ended the other way.
            ClientClosed: the client was closed.
        """
        header = EndTransactionHeader(
            self._group,
            half.queue_offset,
            half.physical_offset,
            int(state),
            from_transaction_check=from_check,
            msg_id=half.unique_id,
            transaction_id=half.unique_id,
            topic=half.topic,
        )
        try:
            await self._session.ask_ok(
                RequestCode.END_TRANSACTION,
                header.to_ext(HeaderType.MSGPACK),
                what=f"end of transaction {half.unique_id}",
                address=half.address,
            )
        except TransactionEnded:
            raise
        except ReputError as error:
            self._session.check_open()
            log.warning("transaction %s: %s not taken: %s", half.unique_id, state.name, error)
            return False
        return True
