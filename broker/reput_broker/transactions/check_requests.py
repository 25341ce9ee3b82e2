"""Ask a producer what became of a transaction: 39 (RocketMQ: AbstractTransactionalMessageCheckListener).

Any live producer of the group will do, another one each time. One that is just going, or has too much to read already,
is passed over; where that is so of all of them, the group is, until the next round: nobody else waits for it. Nobody
waits for an answer either: it comes as the end of the transaction, or not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from reput_broker.groups.client_table import ClientChannel
from reput_broker.groups.producer_groups import ProducerGroups
from reput_broker.observe.counters import RetryCounts
from reput_broker.store.message_store import MessageStore
from reput_broker.transactions.half_messages import HalfMessage, check_body
from reput_protocol.codes import RequestCode
from reput_protocol.commands.transaction import CheckTransactionHeader
from reput_protocol.names import TRANS_HALF_TOPIC

_TOGETHER_MAX: Final = 64
"""How many half messages share a sync before their producers are asked."""


class CheckRequests:
    """Half messages whose producers are to be asked.

    Args:
        store: read from.
        producers: asked for somebody to ask.
        counts: counted in.
        flush: syncs the log once, whether or not that succeeds.
        broker_name: named in questions.
    """

    def __init__(
        self,
        store: MessageStore,
        producers: ProducerGroups,
        counts: RetryCounts,
        *,
        flush: Callable[[], Awaitable[None]],
        broker_name: str,
    ) -> None:
        self._store = store
        self._producers = producers
        self._counts = counts
        self._flush = flush
        self._broker_name = broker_name
        self._waiting: list[HalfMessage] = []
        self._passed_over: set[str] = set()

    def begin_round(self) -> None:
        """Give groups that were passed over another chance."""
        self._passed_over.clear()

    def passes_over(self, group: str) -> bool:
        """Whether no producer of a group took a question in this round, although there were some."""
        return group in self._passed_over

    def add(self, half: HalfMessage) -> None:
        """Have the next `ask` ask about a half message, which has just been stored."""
        self._waiting.append(half)

    @property
    def is_full(self) -> bool:
        """Whether it is time to ask."""
        return len(self._waiting) >= _TOGETHER_MAX

    async def ask(self, is_open: Callable[[HalfMessage], bool]) -> None:
        """Ask about all that wait and are still open.

        Whoever answers names the half message, and must not be told that there is none: first it can be read.
        """
        waiting, self._waiting = self._waiting, []
        if waiting and self._store.message_at(waiting[-1].record.physical_offset) is None:
            await self._flush()
        for half in waiting:
            if is_open(half) and not self._ask(half):
                self._counts.checks[half.topic, "no_producer"] += 1

    def _ask(self, half: HalfMessage) -> bool:
        """Send the question to a producer of the group, each tried once; return whether somebody takes it."""
        if half.producer_group in self._passed_over:
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
        while (channel := self._producers.pick(half.producer_group)) is not None and channel not in tried:
            client = channel.client
            if client.send_request(
                RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(client.header_type), body
            ):
                return True
            tried.append(channel)
        if tried:
            self._passed_over.add(half.producer_group)
        return False
