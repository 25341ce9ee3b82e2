"""A transactional outbox: messages that a program writes to a table of its database, and a relay that sends them.

A message is inserted in the same transaction as the program's own rows, so it is sent if that commits, and not sent
if it is rolled back (docs/outbox.md):

    outbox = SqlAlchemyOutbox(Base.metadata)

    with Session(engine) as session, session.begin():
        session.add(order)
        session.execute(outbox.insert(Message("orders", b"...")))

    Relay(outbox.at(engine), "127.0.0.1:10911").run()

`SqlAlchemyOutbox` is in `reput_client.outbox.sqlalchemy`; that of Django is in `reput_client.tasks.django`.
"""

from __future__ import annotations

from reput_client.outbox.relay import OutboxRow, OutboxStore, Outcome, Relay, columns_of

__all__ = ["OutboxRow", "OutboxStore", "Outcome", "Relay", "columns_of"]
