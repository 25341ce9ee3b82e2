"""A FastAPI service whose slow work is done by workers of taskiq.

    pip install './client[taskiq]' fastapi uvicorn
    taskiq worker --app-dir examples fastapi_tasks:broker
    uvicorn --app-dir examples fastapi_tasks:app
    curl -X POST http://127.0.0.1:8000/invoices/7
    curl http://127.0.0.1:8000/invoices/ID

It needs a broker at 127.0.0.1:10911, or at the address in the variable BROKER.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from taskiq.exceptions import ResultGetError

from reput_client.tasks.taskiq import ReputBroker, ReputResultBackend

ADDRESS = os.environ.get("BROKER", "127.0.0.1:10911")

broker = ReputBroker(ADDRESS, queues=["invoices"]).with_result_backend(ReputResultBackend(ADDRESS))


@broker.task
async def print_invoice(order: int) -> str:
    """Take a while; return where the invoice is."""
    await asyncio.sleep(0.5)
    return f"invoice-{order}.pdf"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Connect before the first request."""
    await broker.startup()
    yield
    await broker.shutdown()


app = FastAPI(lifespan=lifespan)


@app.post("/invoices/{order}", status_code=202)
async def order_invoice(order: int, delay_s: float = 0.0) -> str:
    """Answer with the task's id when the task is on the broker's disk; it is done after `delay_s` seconds."""
    task = await print_invoice.kicker().with_labels(delay=delay_s).kiq(order)
    return task.task_id


@app.get("/invoices/{task_id}")
async def show_invoice(task_id: str) -> str:
    """Show where an invoice is, or 404 while it is not printed."""
    try:
        result = await broker.result_backend.get_result(task_id)
    except ResultGetError as error:
        raise HTTPException(404, "not printed yet") from error
    return str(result.return_value)
