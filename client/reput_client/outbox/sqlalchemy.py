"""The outbox of programs that use SQLAlchemy 2 (docs/outbox.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reput_client.outbox.relay import FIND_FILE, OutboxRow, OutboxStore, Outcome, SqliteLock, columns_of, first_of
from reput_protocol.record.message import Message

_ROW_LOCKS: Final = frozenset({"postgresql", "mysql", "mariadb"})
"""Databases that pass over rows that another transaction has locked."""
_BODY_MAX: Final = 16 << 20


class SqlAlchemyOutbox:
    """A table of messages to be sent.

    Args:
        metadata: of the program's tables, so that its migrations create this one too.
        name: of the table.

    Attributes:
        table: its definition.
    """

    def __init__(self, metadata: sa.MetaData, name: str = "reput_outbox") -> None:
        self.table = sa.Table(
            name,
            metadata,
            sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
            sa.Column("topic", sa.String(255), nullable=False),
            sa.Column("body", sa.LargeBinary(_BODY_MAX), nullable=False),
            sa.Column("options", sa.Text, nullable=False),
            sa.Column("unique_id", sa.String(255), nullable=False),
            sa.Column("created_ms", sa.BigInteger, nullable=False),
            sa.Column("error", sa.Text, nullable=False),
            sqlite_autoincrement=True,
        )

    def insert(self, message: Message, *, queue_id: int | None = None, ordering_key: str | None = None) -> sa.Insert:
        """Return the statement that inserts a message, to be executed in the program's transaction.

        Connections and sessions execute it, synchronous and asynchronous ones.

        Args:
            queue_id, ordering_key: as of `Producer.send`.

        Raises:
            InvalidMessage: the message has a value and no body.
        """
        return sa.insert(self.table).values(columns_of(message, queue_id=queue_id, ordering_key=ordering_key))

    def at(self, engine: sa.Engine) -> OutboxStore:
        """Return the table in a database, for a `Relay`.

        Raises:
            TypeError: the engine is asynchronous.
            ValueError: this database has no row locks that a relay could use. PostgreSQL, MySQL 8, MariaDB 10.6 and
                SQLite have what is needed.
        """
        if not isinstance(engine, sa.Engine):
            raise TypeError(
                f"a relay runs in a thread; give it an engine of create_engine, not {type(engine).__name__}"
            )
        if engine.dialect.name == "sqlite":
            return _SqliteStore(engine, self.table)
        if engine.dialect.name not in _ROW_LOCKS:
            raise ValueError(
                f"a relay cannot lock rows of {engine.dialect.name}; the databases are {', '.join(sorted(_ROW_LOCKS))} "
                "and sqlite"
            )
        # In the default mode of MySQL, REPEATABLE READ, the gaps between rows are locked too, and programs wait.
        return _Store(engine.execution_options(isolation_level="READ COMMITTED"), self.table)


@dataclass(eq=False, repr=False)
class _Store(OutboxStore):
    """Rows are locked by the transaction that sends and deletes them."""

    _engine: sa.Engine
    _table: sa.Table

    def relay(self, rows_max: int, send: Callable[[Sequence[OutboxRow]], Outcome]) -> Outcome:
        """See `OutboxStore`."""
        with self._engine.begin() as connection:
            rows = self._rows(connection, rows_max)
            if not rows:
                return Outcome()
            outcome = send(rows)
            self._settle(connection, rows, outcome)
        return outcome

    def _rows(self, connection: Connection, rows_max: int) -> list[OutboxRow]:
        columns = self._table.c
        first = sa.select(columns.id, sa.func.length(columns.body)).where(columns.error == "")
        first = first.order_by(columns.id).limit(rows_max).with_for_update(skip_locked=True)
        ids = first_of((row_id, size) for row_id, size in connection.execute(first))
        if not ids:
            return []
        wanted = sa.select(
            columns.id, columns.topic, columns.body, columns.options, columns.unique_id, columns.created_ms
        )
        found = connection.execute(wanted.where(columns.id.in_(ids)).order_by(columns.id))
        return [OutboxRow(*row) for row in found]

    def _settle(self, connection: Connection, rows: Sequence[OutboxRow], outcome: Outcome) -> None:
        columns, unique_ids = self._table.c, {row.id: row.unique_id for row in rows}
        if outcome.sent:
            sent = [unique_ids[row_id] for row_id in outcome.sent]
            connection.execute(sa.delete(self._table).where(columns.id.in_(outcome.sent), columns.unique_id.in_(sent)))
        for reason, ids in outcome.refused_by_reason().items():
            refused = [unique_ids[row_id] for row_id in ids]
            wanted = (columns.id.in_(ids), columns.unique_id.in_(refused))
            connection.execute(sa.update(self._table).where(*wanted).values(error=reason))

    def retry(self) -> int:
        """See `OutboxStore`."""
        with self._engine.begin() as connection:
            cleared = connection.execute(sa.update(self._table).where(self._table.c.error != "").values(error=""))
            return cleared.rowcount

    def close(self) -> None:
        """See `OutboxStore`."""


class _SqliteStore(_Store):
    """One relay has all rows, and no transaction is open while it sends: that would stop the program's own."""

    def __init__(self, engine: sa.Engine, table: sa.Table) -> None:
        super().__init__(engine, table)
        self._lock: SqliteLock | None = None

    def relay(self, rows_max: int, send: Callable[[Sequence[OutboxRow]], Outcome]) -> Outcome:
        """See `OutboxStore`."""
        if not self._acquire():
            return Outcome()
        with self._engine.connect() as connection:
            rows = self._rows(connection, rows_max)
        if not rows:
            return Outcome()
        outcome = send(rows)
        with self._engine.begin() as connection:
            self._settle(connection, rows, outcome)
        return outcome

    def _acquire(self) -> bool:
        if self._lock is None:
            with self._engine.connect() as connection:
                path = connection.scalar(sa.text(FIND_FILE))
            self._lock = SqliteLock(path or "", self._table.name)
        return self._lock.acquire()

    def close(self) -> None:
        """See `OutboxStore`."""
        if self._lock is not None:
            self._lock.release()
