"""A FastAPI application: an endpoint sends a message for each order, and a consumer bills them in the background.

    pip install ./client fastapi uvicorn
    uvicorn --app-dir examples fastapi_app:app
    curl -H 'Content-Type: application/json' -d '{"number": 7, "cents": 1999}' http://127.0.0.1:8000/orders

It needs a broker at 127.0.0.1:10911, or at the address in the variable BROKER.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from fastapi import FastAPI, Request
from pydantic import BaseModel

from reput_client import Consumer, Json, Message, Producer, ReceivedMessage

BROKER = os.environ.get("BROKER", "127.0.0.1:10911")


class Order(BaseModel):
    """What a customer wants."""

    number: int
    cents: int


orders = Json(Order)
bills: dict[int, str] = {}


async def bill(message: ReceivedMessage[Order]) -> None:
    """Bill an order. If this raises, the group gets the message again: after 10 s, 30 s, 1 min and so on.

    A message that is no order becomes a dead letter.
    """
    order = message.value
    bills[order.number] = f"{order.cents / 100:.2f} EUR"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Producer]]:
    """Connect before the first request, and after the last one commit what is billed."""
    async with (
        Producer(BROKER, group="shop", serializer=orders.serialize) as producer,
        Consumer(BROKER, group="web-billing", topic="web-orders", deserializer=orders.deserialize) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(consumer.run, bill)
        yield {"producer": producer}
        consumer.stop()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def take_order(order: Order, request: Request) -> str:
    """Answer with the message's id when the broker has the order on disk."""
    producer: Producer = request.state.producer
    receipt = await producer.send(Message("web-orders", value=order, tag="paid", keys=[f"o-{order.number}"]))
    return receipt.message_id


@app.get("/bills")
async def show_bills() -> dict[int, str]:
    """Show what was billed."""
    return bills
