"""The orders of the example: what happens to each, and its required end."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

BILLING_RETRIES = 2
"""Number of retries in billing before a message becomes a dead letter."""


class Ending(NamedTuple):
    """The required state of an order in the database; None means that it must not exist."""

    state: str | None
    attempts: int = 0
    reminders: int = 0


class Story(Enum):
    """What happens to an order."""

    PAID = "the card is charged at once"
    UNSTEADY = "the bank does not answer, billing tries again a second later, and it does"
    DECLINED = "the bank says no three times: a dead letter, and the support desk gives up"
    SOLD_OUT = "the shop's transaction is rolled back, and no message is delivered"
    SHOP_DIES = "the shop is killed before the commit: the broker checks with another one"
    INVOICE = "paid later, if at all: a reminder is sent after a while"


ENDINGS = {
    Story.PAID: Ending("paid", attempts=1),
    Story.UNSTEADY: Ending("paid", attempts=2),
    Story.DECLINED: Ending("given up", attempts=1 + BILLING_RETRIES),
    Story.SOLD_OUT: Ending(None),
    Story.SHOP_DIES: Ending("paid", attempts=1),
    Story.INVOICE: Ending("open", reminders=1),
}


class Order(NamedTuple):
    """An order and its story. The body of its message is the id and the story's name."""

    id: str
    story: Story

    def encoded(self) -> bytes:
        """Return the body of its message."""
        return f"{self.id} {self.story.name}".encode()

    @classmethod
    def decoded(cls, body: bytes) -> Order:
        """Return the order of a message."""
        order_id, story = body.decode().split()
        return cls(order_id, Story[story])


def orders(count: int) -> list[Order]:
    """Return `count` orders with alternating stories."""
    stories = list(Story)
    return [Order(f"order-{number:04d}", stories[number % len(stories)]) for number in range(count)]
