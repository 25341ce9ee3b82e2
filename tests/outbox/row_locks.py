"""Whether a relay passes over the rows that another one is sending, on a database with row locks."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sqlalchemy import MetaData, create_engine

from reput_client import Message
from reput_client.outbox import OutboxRow, OutboxStore, Outcome
from reput_client.outbox.sqlalchemy import SqlAlchemyOutbox


def check_django() -> None:
    """Check the table of Django, which is empty. Raises AssertionError."""
    from reput_client.tasks.django.models import DjangoOutbox, Outbox

    for body in (b"1", b"2", b"3"):
        Outbox.add(Message("orders", body))
    _check(DjangoOutbox("default", "default"), DjangoOutbox("default", "default"))
    assert not Outbox.objects.exists()


def check_sqlalchemy(url: str) -> None:
    """Check a table of SQLAlchemy, in the database of a URL. Raises AssertionError."""
    outbox, engine = SqlAlchemyOutbox(MetaData()), create_engine(url)
    outbox.table.metadata.create_all(engine)
    with engine.begin() as connection:
        for body in (b"1", b"2", b"3"):
            connection.execute(outbox.insert(Message("orders", body)))
    _check(outbox.at(engine), outbox.at(engine))
    engine.dispose()


def _check(first: OutboxStore, second: OutboxStore) -> None:
    """Let the second relay have what the first one leaves; of the two rows of the first one, one is not sent."""
    bodies: list[bytes] = []

    def sent(rows: Sequence[OutboxRow]) -> Outcome:
        bodies.extend(bytes(row.body) for row in rows)
        return Outcome(sent=[row.id for row in rows])

    def relay_second() -> None:
        second.relay(10, sent)
        second.close()

    def send_first(rows: Sequence[OutboxRow]) -> Outcome:
        other = threading.Thread(target=relay_second)
        other.start()
        other.join(10)
        assert bodies == [b"3"], f"the second relay has {bodies}"
        return Outcome(sent=[rows[0].id], failure=ConnectionError("the broker is away"))

    assert len(first.relay(2, send_first).sent) == 1
    first.relay(10, sent)
    assert bodies == [b"3", b"2"]
    first.close()
