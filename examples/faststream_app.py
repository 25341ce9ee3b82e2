"""A FastStream application: it bills paid orders, and sends the bills by post.

    pip install './client[faststream]'
    python examples/faststream_app.py

It needs a broker at 127.0.0.1:10911, or at the address in the variable BROKER. It sends itself three orders, and ends
when their bills are posted.
"""

from __future__ import annotations

import asyncio
import os

from faststream import FastStream
from pydantic import BaseModel

from reput_client.faststream import ReputBroker, ReputMessage

broker = ReputBroker(os.environ.get("BROKER", "127.0.0.1:10911"))
app = FastStream(broker)


class Order(BaseModel):
    """What a customer wants."""

    number: int
    cents: int


class Bill(BaseModel):
    """What a customer owes."""

    order: int
    text: str


@broker.subscriber("orders", group="billing", tags="paid", max_workers=4)
@broker.publisher("bills")
async def bill(order: Order) -> Bill:
    """Bill an order. If this raises, the group gets the message again: after 10 s, 30 s, 1 min and so on."""
    return Bill(order=order.number, text=f"{order.cents / 100:.2f} EUR")


posted: set[int] = set()


@broker.subscriber("bills", group="post")
async def post(bill: Bill, message: ReputMessage) -> None:
    """Post a bill, only once even if it is delivered again."""
    if bill.order not in posted:
        posted.add(bill.order)
        print(f"order {bill.order}: {bill.text}, message {message.message_id}")
    if posted == {1, 2, 3}:
        app.exit()


@app.after_startup
async def send_orders() -> None:
    """Send three paid orders, and one that is not."""
    for number in (1, 2, 3):
        await broker.publish(Order(number=number, cents=1999 * number), "orders", tag="paid", keys=[f"o-{number}"])
    await broker.publish(Order(number=4, cents=1), "orders", tag="declined")


if __name__ == "__main__":
    asyncio.run(app.run())
