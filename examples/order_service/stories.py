"""What happens to the orders of the example, and how each has to end."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

BILLING_RETRIES = 2
"""How often billing gets a message again before it becomes a dead letter."""


class Ending(NamedTuple):
    """How an order must stand in the database at the end; None: there is no such order."""

    state: str | None
    attempts: int = 0
    reminders: int = 0


class Story(Enum):
    """What becomes of an order."""

    PAID = "the card is charged at once"
    UNSTEADY = "the bank does not answer, billing tries again a second later, and it does"
    DECLINED = "the bank says no three times: a dead letter, and the support desk gives up"
    SOLD_OUT = "the shop's transaction is rolled back, nobody hears of the order"
    SHOP_DIES = "killed with the order in its database and not announced: another is asked"
    INVOICE = "paid later, if ever: a reminder goes out after a while"


ENDINGS = {
    Story.PAID: Ending("paid", attempts=1),
    Story.UNSTEADY: Ending("paid", attempts=2),
    Story.DECLINED: Ending("given up", attempts=1 + BILLING_RETRIES),
    Story.SOLD_OUT: Ending(None),
    Story.SHOP_DIES: Ending("paid", attempts=1),
    Story.INVOICE: Ending("open", reminders=1),
}


class Order(NamedTuple):
    """An order and its story. The message's body is its id and the name of the story."""

    id: str
    story: Story

    def encoded(self) -> bytes:
        """Return the body of its message."""
        return f"{self.id} {self.story.name}".encode()

    @classmethod
    def decoded(cls, body: bytes) -> Order:
        """Return the order that a message is about."""
        order_id, story = body.decode().split()
        return cls(order_id, Story[story])


def orders(count: int) -> list[Order]:
    """Return so many orders, the stories in turn."""
    stories = list(Story)
    return [Order(f"order-{number:04d}", stories[number % len(stories)]) for number in range(count)]
