"""A small shop on Reput: orders in transactions, billing with retries and dead letters, delayed reminders.

    make demo KIND=shop                                  # with a broker of its own, in a temporary directory
    make demo KIND=shop ARGS="--server localhost:10911"  # with one that is running

Each order has a story (`stories.py`): a bank that does not answer, a card that is declined, a shop that is killed
between database and commit. At the end the database must have each order in the state that its story requires.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from database import Database, Row
from rich.console import Console
from rich.table import Table
from services import DEAD_LETTERS, REMINDERS, run_all
from shop import TOPIC, Shop, take_in_a_process_that_dies
from stories import ENDINGS, Ending, Order, Story, orders

from reput_broker import Broker, BrokerConfig
from reput_client import Admin

_WAIT_S = 120.0
_QUIET_S = 1.0
"""Seconds for which the final state must last, so that duplicates are noticed."""


def main() -> int:
    """Run the shop; return 0 if every order ended as its story requires."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="HOST:PORT of a running broker (default: start one)")
    parser.add_argument("--orders", type=int, default=12, help="number of orders (12)")
    parser.add_argument("--remind-after", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--database", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--die-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.die_of is not None:
        trio.run(_die, arguments.server, arguments.database, Order.decoded(arguments.die_of.encode()))
    logging.getLogger("reput_client").setLevel(logging.ERROR)  # billing is meant to fail
    return trio.run(_run, arguments.server, arguments.orders, arguments.remind_after)


async def _run(server: str | None, count: int, remind_after_s: float) -> int:
    with tempfile.TemporaryDirectory(prefix="reput-orders-") as directory:
        path = Path(directory, "shop.db")
        database = Database(path)
        try:
            async with _broker(server, Path(directory, "store")) as address:
                return await _open_for_business(address, database, path, orders(count), remind_after_s)
        finally:
            database.close()


async def _open_for_business(
    address: str, database: Database, path: Path, coming: list[Order], remind_after_s: float
) -> int:
    started_at = time.monotonic()
    async with Admin(address) as admin:
        for topic in (TOPIC, REMINDERS, DEAD_LETTERS):
            await admin.create_topic(topic, queues=4)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_all, address, database, remind_after_s)
        async with Shop(address, database) as shop:
            for order in coming:
                if order.story is Story.SHOP_DIES:
                    await take_in_a_process_that_dies(address, path, order)
                else:
                    await shop.take(order)
            print(f"{len(coming)} orders taken; waiting until they are done", flush=True)
            settled = await _settled(database, coming)
        nursery.cancel_scope.cancel()
    _show(database.rows(), coming)
    took_s = time.monotonic() - started_at
    print(f"{'every order ended as it should' if settled else 'NOT AS IT SHOULD'}, after {took_s:.1f} s")
    return 0 if settled else 1


async def _settled(database: Database, coming: list[Order]) -> bool:
    with trio.move_on_after(_WAIT_S):
        while not _have_ended(database, coming):  # noqa: ASYNC110 - the database has no callbacks
            await trio.sleep(0.1)
        await trio.sleep(_QUIET_S)
    return _have_ended(database, coming)


def _have_ended(database: Database, coming: list[Order]) -> bool:
    rows = database.rows()
    return all(_ending(rows.get(order.id)) == ENDINGS[order.story] for order in coming)


def _ending(row: Row | None) -> Ending:
    if row is None:
        return Ending(None)
    if row.charges != (row.state == "paid"):
        return Ending(f"charged {row.charges} times")
    return Ending(row.state, row.attempts, row.reminders)


def _show(rows: dict[str, Row], coming: list[Order]) -> None:
    table = Table("order", "story", "state", "charged", "attempts", "reminders")
    for order in coming:
        row = rows.get(order.id)
        figures = ("no such order", "", "", "") if row is None else (row.state, *map(str, row[2:]))
        table.add_row(order.id, _name(order.story), *figures)
    console = Console()
    console.print(table)
    for story in Story:
        console.print(f"{_name(story) + ':':<11}{story.value}", highlight=False)


def _name(story: Story) -> str:
    return story.name.lower().replace("_", " ")


async def _die(address: str, path: Path, order: Order) -> None:
    async with Shop(address, Database(path)) as shop:
        await shop.take(order, dies=True)


@asynccontextmanager
async def _broker(server: str | None, directory: Path) -> AsyncIterator[str]:
    if server is not None:
        yield server
        return
    # By default a broker checks a transaction after 6 s, which is long for an example.
    config = BrokerConfig(data_dir=directory, port=0, transactions={"timeout": "1s", "check_interval": "500ms"})
    async with Broker(config) as broker:
        yield broker.address


if __name__ == "__main__":
    sys.exit(main())
