"""Sends of many messages: several blocks, of which some are in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from reput_client.errors import (
    BrokerNotFound,
    ClientClosed,
    ConnectFailed,
    PartlySent,
    RequestTimeout,
)
from reput_client.produce.block import OutgoingBlock, Terms
from reput_client.produce.block_sender import BlockSender
from reput_client.produce.contents import Contents, block_of
from reput_client.produce.puts import outcome_unknown
from reput_client.produce.queue_selector import QueueChoice
from reput_client.receipts import ChainedReceipts, SendReceipt
from reput_client.transport.session import Session
from reput_protocol.errors import ReputError

_NOT_SENT: Final = (BrokerNotFound, ClientClosed, ConnectFailed, RequestTimeout)


class SendOfMany:
    """One send of many messages. Once a block fails, only those in flight are waited for.

    Args:
        in_flight: maximum unanswered blocks.
        choice: the queue of all blocks; None: each goes to the next.
    """

    def __init__(
        self,
        session: Session,
        sender: BlockSender,
        terms: Terms,
        in_flight: int,
        choice: QueueChoice,
    ) -> None:
        self._session = session
        self._sender = sender
        self._terms = terms
        self._in_flight = in_flight
        self._choice = choice
        self._room_from = in_flight - max(1, in_flight // 2)
        """The next blocks are encoded at this many unanswered; the broker handles those meanwhile."""
        self._blocks: list[tuple[int, OutgoingBlock]] = []
        """With the index of the first message of each."""
        self._open: dict[OutgoingBlock, None] = {}
        """Unfinished blocks in order."""
        self._begun = 0
        """Messages in blocks."""
        self._failed = False

    async def run(self, contents: Iterable[Contents]) -> Sequence[SendReceipt]:
        """Send all messages and return their receipts in order; raises like `Producer.send_many`."""
        errors: dict[int, ReputError] = {}
        opened, sender = self._open, self._sender
        try:
            try:
                for one in contents:
                    if len(opened) >= self._in_flight:
                        await self._wait(self._has_room)
                    if self._failed:
                        break
                    try:
                        await self._begin(one)
                    except ClientClosed as closed:
                        errors[self._begun] = closed
                        raise
                    sender.go_on()
            except ClientClosed:
                raise
            except ReputError as error:
                if not self._blocks:
                    raise
                errors[self._begun] = error
            await self._wait(lambda: not opened)
        except ClientClosed as closed:
            if not self._blocks:
                raise
            self._failed = True
            sender.withdraw(opened)
            for block in opened:
                for each in (*block.parts, block):
                    if not each.done:
                        each.finish(None, outcome_unknown(each.queue, each.unique_ids, str(closed)))
            opened.clear()
        finally:
            sender.withdraw(opened)
        return self._outcome(errors)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        await self._sender.until(condition)

    async def _begin(self, contents: Contents) -> None:
        """Send the messages of one block; if this raises, no part of it was sent."""
        session = self._session
        deadline = session.deadline(self._terms.timeout_s)
        route = await session.publish_route(contents.topic, deadline)
        queue = self._sender.choose(route, self._choice)
        block = block_of(contents, queue, self._terms, is_free=self._choice is None)
        block.on_done = self._on_done
        self._blocks.append((self._begun, block))
        self._begun += len(contents.bodies)
        self._open[block] = None
        self._sender.add(block)

    def _has_room(self) -> bool:
        return len(self._open) <= self._room_from or self._failed

    def _on_done(self, block: OutgoingBlock) -> None:
        del self._open[block]
        if block.error is not None and not self._failed:
            self._failed = True
            waiting = [b for b in self._open if b.call is None and not b.parts and not b.done]
            self._sender.withdraw(waiting)
            for other in waiting:
                del self._open[other]

    def _outcome(self, errors: dict[int, ReputError]) -> Sequence[SendReceipt]:
        """Return all receipts, or raise the combined errors of the blocks and `errors`."""
        done = [(first, block) for first, block in self._blocks if block.done]
        stored: dict[int, SendReceipt] = {}
        if errors or self._failed or len(done) < len(self._blocks):
            for first, block in done:
                for number in range(block.count):
                    error, receipt = block.error_of(number), block.receipt_of(number)
                    if error is not None:
                        errors[first + number] = error
                    if receipt is not None:
                        stored[first + number] = receipt
        if not errors:
            return ChainedReceipts([block.receipts or () for _, block in done])
        if not stored and isinstance(errors.get(0), _NOT_SENT):
            raise errors[0]
        count = max((*errors, *stored)) + 1
        raise PartlySent([stored.get(number) for number in range(count)], errors) from errors[min(errors)]
