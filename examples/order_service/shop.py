"""The shop takes orders: a row in its database and a message, either both or none.

The message is sent in a transaction. If the shop dies between the two, the broker checks the transaction with another
shop of the group, which looks into the database.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import trio
from database import Database
from stories import Order, Story

from reput_client import Message, ReceivedMessage, TransactionProducer, TransactionState

TOPIC = "orders"
CARD, INVOICE = "card", "invoice"


class Shop:
    """Takes orders through one broker; an async context manager."""

    def __init__(self, address: str, database: Database) -> None:
        self._database = database
        self._producer = TransactionProducer(address, group="shop", check=self._was_taken)

    async def __aenter__(self) -> Shop:
        await self._producer.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._producer.aclose()

    async def take(self, order: Order, *, dies: bool = False) -> None:
        """Take an order; with `dies`, the process ends between the row and the commit of the message."""

        async def insert(message: Message) -> TransactionState:
            if order.story is Story.SOLD_OUT:
                return TransactionState.ROLLBACK
            assert message.unique_id is not None
            self._database.insert(order.id, message.unique_id)
            if dies:
                os._exit(9)
            return TransactionState.COMMIT

        tag = INVOICE if order.story is Story.INVOICE else CARD
        await self._producer.send_in_transaction(Message(TOPIC, order.encoded(), tag=tag, keys=[order.id]), insert)

    async def _was_taken(self, message: ReceivedMessage) -> TransactionState:
        taken = self._database.exists(message.message_id)
        return TransactionState.COMMIT if taken else TransactionState.ROLLBACK


async def take_in_a_process_that_dies(address: str, database: Path, order: Order) -> None:
    """Take an order in a process that dies during it."""
    command = [sys.executable, str(Path(__file__).parent), "--server", address]
    command += ["--database", str(database), "--die-of", order.encoded().decode()]
    ended = await trio.run_process(command, check=False, stdin=subprocess.DEVNULL)
    if ended.returncode != 9:
        raise RuntimeError(f"the shop was to die of {order.id}, and ended with {ended.returncode}")
