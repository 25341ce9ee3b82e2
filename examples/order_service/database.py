"""The shop's database: an SQLite file with one table, which several processes may have open."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

_TABLE = """
CREATE TABLE IF NOT EXISTS orders (
    id TEXT PRIMARY KEY,
    transaction_id TEXT UNIQUE NOT NULL,
    state TEXT NOT NULL DEFAULT 'open',
    charges INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    reminders INTEGER NOT NULL DEFAULT 0
)
"""


class Row(NamedTuple):
    """An order. `charges` is the number of times its customer was charged."""

    id: str
    state: str
    charges: int
    attempts: int
    reminders: int


class Database:
    """Orders by id. Each method is a transaction, which is on disk when it returns."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30.0)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(_TABLE)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def insert(self, order_id: str, transaction_id: str) -> None:
        """Insert an order with the transaction id of its message, by which `exists` finds it."""
        self._connection.execute("INSERT INTO orders (id, transaction_id) VALUES (?, ?)", (order_id, transaction_id))

    def exists(self, transaction_id: str) -> bool:
        """Return whether the local transaction of a message was committed."""
        found = self._connection.execute("SELECT 1 FROM orders WHERE transaction_id = ?", (transaction_id,))
        return found.fetchone() is not None

    def state_of(self, order_id: str) -> str:
        """Return `open`, `paid` or `given up`."""
        row = self._connection.execute("SELECT state FROM orders WHERE id = ?", (order_id,)).fetchone()
        return str(row[0])

    def count_attempt(self, order_id: str) -> int:
        """Count an attempt to charge; return the number of attempts before it."""
        row = self._connection.execute(
            "UPDATE orders SET attempts = attempts + 1 WHERE id = ? RETURNING attempts - 1", (order_id,)
        ).fetchone()
        return int(row[0])

    def charge(self, order_id: str) -> bool:
        """Record a payment; return False if it was already paid: a message may be delivered twice."""
        changed = self._connection.execute(
            "UPDATE orders SET state = 'paid', charges = charges + 1 WHERE id = ? AND state = 'open'", (order_id,)
        )
        return changed.rowcount == 1

    def give_up(self, order_id: str) -> None:
        """Record that an order will not be paid."""
        self._connection.execute("UPDATE orders SET state = 'given up' WHERE id = ? AND state = 'open'", (order_id,))

    def count_reminder(self, order_id: str) -> None:
        """Record a reminder."""
        self._connection.execute("UPDATE orders SET reminders = reminders + 1 WHERE id = ?", (order_id,))

    def rows(self) -> dict[str, Row]:
        """Return all orders, by id."""
        found = self._connection.execute("SELECT id, state, charges, attempts, reminders FROM orders ORDER BY id")
        return {row[0]: Row(*row) for row in found}
