"""The services that process orders: billing, reminders and the support desk, each a consumer group."""

from __future__ import annotations

import trio
from database import Database
from shop import CARD, INVOICE, TOPIC
from stories import BILLING_RETRIES, Order, Story

from reput_client import Consumer, GiveBack, Message, Producer, ReceivedMessage

REMINDERS = "order-reminders"
DEAD_LETTERS = "%DLQ%billing"
_ONE_SECOND = 1  # RocketMQ's delay level


class NoAnswer(Exception):
    """The bank does not answer."""


class CardDeclined(Exception):
    """The bank declines the card."""


async def billing(address: str, database: Database) -> None:
    """Charge the cards. A failed message is retried a second later; after the last retry it is a dead letter."""

    async def charge(message: ReceivedMessage) -> None:
        order = Order.decoded(message.body)
        tried = database.count_attempt(order.id)
        if order.story is Story.UNSTEADY and tried == 0:
            raise NoAnswer(f"the bank did not answer for {order.id}")
        if order.story is Story.DECLINED:
            raise CardDeclined(f"the bank declines the card of {order.id}")
        database.charge(order.id)

    again = GiveBack(delay_level=_ONE_SECOND, attempts_max=BILLING_RETRIES)
    async with Consumer(address, group="billing", topic=TOPIC, tags=CARD, on_failure=again) as consumer:
        await consumer.run(charge, concurrency=4, handle_signals=False)


async def reminder_planner(address: str, remind_after_s: float) -> None:
    """Send a delayed message for each order that is paid by invoice."""
    async with (
        Producer(address) as producer,
        Consumer(address, group="reminder-planner", topic=TOPIC, tags=INVOICE) as consumer,
    ):

        async def plan(message: ReceivedMessage) -> None:
            order = Order.decoded(message.body)
            await producer.send(Message(REMINDERS, order.encoded(), keys=[order.id], delay_s=remind_after_s))

        await consumer.run(plan, concurrency=4, handle_signals=False)


async def reminders(address: str, database: Database) -> None:
    """Remind customers that have not paid when the delayed message is delivered."""

    async def remind(message: ReceivedMessage) -> None:
        order = Order.decoded(message.body)
        if database.state_of(order.id) == "open":
            database.count_reminder(order.id)

    async with Consumer(address, group="reminders", topic=REMINDERS) as consumer:
        await consumer.run(remind, handle_signals=False)


async def support_desk(address: str, database: Database) -> None:
    """Give up the orders in billing's dead letters."""

    async def give_up(message: ReceivedMessage) -> None:
        database.give_up(Order.decoded(message.body).id)

    async with Consumer(address, group="support-desk", topic=DEAD_LETTERS) as consumer:
        await consumer.run(give_up, handle_signals=False)


async def run_all(
    address: str,
    database: Database,
    remind_after_s: float,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run all services until cancelled; the program around them handles signals."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(billing, address, database)
        nursery.start_soon(reminder_planner, address, remind_after_s)
        nursery.start_soon(reminders, address, database)
        nursery.start_soon(support_desk, address, database)
        task_status.started()
