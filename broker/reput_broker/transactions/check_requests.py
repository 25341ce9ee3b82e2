"""Ask producers about transactions: request 39 (RocketMQ: AbstractTransactionalMessageCheckListener).

The live producers of the group are asked alternately. One that is disconnecting, or has too much to read, is skipped;
if all are, so is the group until the next round. The answer arrives as the end of the transaction, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from reput_broker.core import Core
from reput_broker.groups.client_table import ClientChannel
from reput_broker.transactions.half_messages import HalfMessage, check_body
from reput_protocol.codes import RequestCode
from reput_protocol.commands.transaction import CheckTransactionHeader
from reput_protocol.names import TRANS_HALF_TOPIC

_TOGETHER_MAX: Final = 64
"""How many half messages share a sync before their producers are asked."""


class CheckRequests:
    """Half messages whose producers are to be asked."""

    def __init__(self, core: Core) -> None:
        self._store = core.store
        self._producers = core.groups.membership.producers
        self._counts = core.counters.retry
        self._flush = core.puts.flush.flush_now
        self._broker_name = core.config.broker_name
        self._waiting: list[HalfMessage] = []
        self._skipped: set[str] = set()

    def begin_round(self) -> None:
        """Try skipped groups again."""
        self._skipped.clear()

    def skips(self, group: str) -> bool:
        """Whether every producer of a group refused a request in this round."""
        return group in self._skipped

    def add(self, half: HalfMessage) -> None:
        """Queue a half message, which has just been stored, for the next `ask`."""
        self._waiting.append(half)

    @property
    def is_full(self) -> bool:
        """Whether `ask` should be called."""
        return len(self._waiting) >= _TOGETHER_MAX

    async def ask(self, is_open: Callable[[HalfMessage], bool]) -> None:
        """Ask about all queued messages that are still open.

        The producer's answer names the half message, so that must be readable first.
        """
        waiting, self._waiting = self._waiting, []
        if waiting and self._store.message_at(waiting[-1].record.physical_offset) is None:
            await self._flush()
        for half in waiting:
            if is_open(half) and not self._ask(half):
                self._counts.checks[half.topic, "no_producer"] += 1

    def _ask(self, half: HalfMessage) -> bool:
        """Try each producer of the group once; return whether one takes the request."""
        if half.producer_group in self._skipped:
            return False
        record = half.record
        header = CheckTransactionHeader(
            record.queue_offset,
            record.physical_offset,
            topic=TRANS_HALF_TOPIC,
            msg_id=half.unique_key,
            transaction_id=half.unique_key,
            offset_msg_id=record.offset_message_id,
            broker_name=self._broker_name,
        )
        body = check_body(half)
        tried: list[ClientChannel] = []
        is_refused = False
        while (channel := self._producers.pick(half.producer_group)) is not None and channel not in tried:
            client = channel.client
            user = client.principal
            # The request has the message, and any user can name any producer group.
            may_see = user is None or user.permits("write", "topic", half.topic)
            is_refused |= may_see
            if may_see and client.send_request(
                RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(client.header_type), body
            ):
                return True
            tried.append(channel)
        if is_refused:
            self._skipped.add(half.producer_group)
        return False
