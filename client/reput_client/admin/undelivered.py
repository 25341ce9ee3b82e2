"""The part of `Admin` for messages that no consumer gets yet: delayed ones, and those of open transactions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from reput_client.admin.requests import AdminRequests
from reput_client.preview import Preview
from reput_protocol.codes import RequestCode, TransactionState
from reput_protocol.commands.delay import (
    CancelDelayedHeader,
    CancelledMessage,
    CancelResult,
    DelayedMessage,
    DelayedMessageList,
    ListDelayedHeader,
)
from reput_protocol.commands.transaction import (
    EndTransactionHeader,
    ListTransactionsHeader,
    OpenTransaction,
    OpenTransactions,
)
from reput_protocol.errors import ErrorCode, NotFound
from reput_protocol.names import check_topic
from reput_protocol.printable import counted
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import HeaderType

_MSGPACK = HeaderType.MSGPACK


class UndeliveredAdmin(AdminRequests):
    """The methods of `Admin` for delayed messages and open transactions; errors as there."""

    # -- delayed messages --------------------------------------------------------------------------------------

    async def list_delayed(
        self, *, topic: str | None = None, key: str | None = None, max_messages: int = 1000
    ) -> list[DelayedMessage]:
        """Return delayed messages that are not delivered yet, the earliest first.

        Args:
            topic: only those for this topic.
            key: only those with this unique id or key.
            max_messages: upper bound.
        """

        async def read(
            name: str, count: int, cursor: str | None
        ) -> tuple[Sequence[DelayedMessage], str | None]:
            page = await self.delayed_page(
                topic=topic, key=key, max_messages=count, cursor=cursor, broker_name=name
            )
            return page.messages, page.cursor

        return await self._from_masters(read, max_messages, lambda found: found.deliver_timestamp)

    async def delayed_page(
        self,
        *,
        topic: str | None = None,
        key: str | None = None,
        max_messages: int = 64,
        cursor: str | None = None,
        broker_name: str | None = None,
    ) -> DelayedMessageList:
        """Return a part of a broker's delayed messages: the earliest, or those from `cursor` on.

        There may be fewer than `max_messages`. It is the broker at the client's address, or the named broker's master.
        """
        topic = None if topic is None else check_topic(topic)
        ext = ListDelayedHeader(topic, key, max_messages, cursor or None).to_ext(_MSGPACK)
        what = "list of delayed messages"
        call = await self._ask_one(broker_name, RequestCode.LIST_DELAYED_MESSAGES, ext, what)
        return DelayedMessageList.from_json(call.body)

    async def preview_cancel_delayed(self, topic: str, key: str) -> Preview:
        """Return what `cancel_delayed` would do, with a row for each message that waits."""
        found = await self.list_delayed(topic=check_topic(topic), key=key)
        return Preview(
            f"{counted(len(found), 'delayed message')} for {topic} with the key {key}: "
            + ("never delivered" if found else "nothing waits"),
            ("that cannot be undone",) if found else (),
            ("message_id", "deliver_at", "size_bytes"),
            [
                (
                    message.unique_id or message.offset_message_id,
                    message.deliver_at.isoformat(timespec="milliseconds"),
                    message.size,
                )
                for message in found
            ],
            is_change=bool(found),
        )

    async def cancel_delayed(self, topic: str, key: str) -> list[CancelledMessage]:
        """Cancel the delayed messages for `topic` with this unique id or key; return the outcome for each.

        `CANCELLED` and `ALREADY_CANCELLED` are durable: the message is never delivered. `DELIVERED`: it was too late.

        Raises:
            NotFound: no broker knows such a message, in any state.
        """
        header = CancelDelayedHeader(check_topic(topic), key)
        answers = await self._ask_each(
            RequestCode.CANCEL_DELAYED_MESSAGE,
            header.to_ext(_MSGPACK),
            f"cancel {key} of {topic}",
            absent=(NotFound,),
        )
        results = [CancelResult.from_json(call.body) for call in answers.values()]
        return [message for result in results for message in result.messages]

    # -- open transactions -------------------------------------------------------------------------------------

    async def list_transactions(
        self, *, topic: str | None = None, key: str | None = None, max_transactions: int = 1000
    ) -> list[OpenTransaction]:
        """Return transactions that are open, the oldest first.

        Args:
            topic: only those of messages for this topic.
            key: only the one with this unique id (the transaction id), or those with this key.
            max_transactions: upper bound.
        """
        topic = None if topic is None else check_topic(topic)

        async def read(
            name: str, count: int, cursor: int | None
        ) -> tuple[Sequence[OpenTransaction], int | None]:
            page = await self.transaction_page(
                topic=topic, key=key, max_transactions=count, cursor=cursor or 0, broker_name=name
            )
            return page.transactions, page.cursor

        return await self._from_masters(read, max_transactions, lambda found: found.store_timestamp)

    async def transaction_page(
        self,
        *,
        topic: str | None = None,
        key: str | None = None,
        max_transactions: int = 64,
        cursor: int = 0,
        broker_name: str | None = None,
    ) -> OpenTransactions:
        """Return a part of a broker's open transactions: the oldest, or those from `cursor` on.

        There may be fewer than `max_transactions`. It is the broker at the client's address, or the named broker's
        master.
        """
        topic = None if topic is None else check_topic(topic)
        ext = ListTransactionsHeader(topic, key, max_transactions, cursor).to_ext(_MSGPACK)
        call = await self._ask_one(broker_name, RequestCode.LIST_TRANSACTIONS, ext, "open transactions")
        return OpenTransactions.from_json(call.body)

    async def open_transaction(self, topic: str, unique_id: str) -> OpenTransaction:
        """Return the open transaction of the message for `topic` with this unique id, its transaction id.

        Raises:
            NotFound: there is none, or it has ended.
        """
        for found in await self.list_transactions(topic=topic, key=unique_id):
            if found.unique_id == unique_id:
                return found
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"no transaction of {topic} with the id {unique_id!r} is open; it may have ended",
        )

    async def preview_end_transaction(self, topic: str, unique_id: str, *, commit: bool) -> Preview:
        """Return what `end_transaction` would do. Raises like `open_transaction`."""
        found = await self.open_transaction(topic, unique_id)
        age_s = max(0, round(time.time() - found.store_timestamp / 1000))
        what = "is delivered" if commit else "is never delivered"
        return Preview(
            f"message {unique_id} of {counted(found.size, 'byte')} {what} to consumers of {topic}",
            (
                f"producer group {found.producer_group} sent it {counted(age_s, 'second')} ago, and was asked about it "
                f"{counted(found.check_times, 'time')}",
                "its producer no longer decides; a later decision of the producer is rejected",
            ),
        )

    async def end_transaction(self, transaction: OpenTransaction, *, commit: bool) -> None:
        """Commit or roll back an open transaction in place of its producer.

        Returns once a commit is stored as any message of a producer is.

        Raises:
            TransactionEnded: it was decided otherwise before.
            NotFound: it is not open any more.
        """
        state = TransactionState.COMMIT if commit else TransactionState.ROLLBACK
        header = EndTransactionHeader(
            transaction.producer_group,
            transaction.queue_offset,
            transaction.commit_log_offset,
            state,
            from_transaction_check=True,  # it counts at any time, also while only the producer may end it
            msg_id=transaction.unique_id or "",
            topic=transaction.topic,
        )
        await self._session.ask_ok(
            RequestCode.END_TRANSACTION,
            header.to_ext(_MSGPACK),
            what=f"end of transaction {transaction.unique_id}",
            queue=MessageQueue(transaction.topic, transaction.broker_name, transaction.queue_id),
        )
