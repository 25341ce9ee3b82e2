"""Rows of an outbox, and the relay that sends them, with what it needs of the table that they are in.

SQLite does not lock single rows, so a lock lets one relay at a time have a table of SQLite.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote
from uuid import uuid4

from reput_client.blocking import Posted, Producer
from reput_client.produce.queue_selector import AnyBroker
from reput_client.transport.backoff import Backoff
from reput_client.transport.options import ClientOptions
from reput_protocol.codes import Ack, AckLevel
from reput_protocol.errors import BrokerError, ErrorCode, InvalidMessage, MessageRefused, ReputError, TopicNotFound
from reput_protocol.properties import EXPIRES_AFTER, EXPIRES_AT
from reput_protocol.record.delays import Delay
from reput_protocol.record.message import NOT_SERIALIZED, Message

PAGE_BYTES: Final = 4 << 20
"""Bytes of bodies after which a store gives a relay no further rows at a time."""
_EXPIRY: Final = frozenset({EXPIRES_AFTER, EXPIRES_AT})
"""Properties that a message has by `ttl_s` and `expires_at`, besides a delay or a priority."""


def first_of(sizes: Iterable[tuple[int, int]]) -> list[int]:
    """Return the ids of the first rows with `PAGE_BYTES` bytes of bodies together, of ids and sizes; at least one."""
    ids: list[int] = []
    total = 0
    for row_id, size in sizes:
        total += size
        if ids and total > PAGE_BYTES:
            break
        ids.append(row_id)
    return ids


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message of an outbox.

    Attributes:
        id: in the order of insertion.
        options: JSON: tag, keys, properties, flag, delay or priority, expiry, queue id, ordering key, if there are any.
        unique_id: by which the broker recognises the message if it is sent again.
        created_ms: when it was inserted, in ms since 1970, on the clock of the program.
    """

    id: int
    topic: str
    body: bytes
    options: str
    unique_id: str
    created_ms: int

    def message(self) -> tuple[Message, dict[str, Any]]:
        """Return the message, and the arguments of `Producer.post` that go with it.

        Raises:
            InvalidMessage: the row was not made by `columns_of`.
        """
        options = json.loads(self.options)
        message = Message(
            self.topic,
            bytes(self.body),
            options.get("tag"),
            options.get("keys", ()),
            options.get("properties"),
            options.get("flag", 0),
            self.unique_id,
        )
        if "delay" in options:
            message.delay = Delay(*options["delay"])
        if "expiry" in options:  # not above: users' properties cannot have these names
            message.properties = {**message.properties, **options["expiry"]}
        terms = {name: options[name] for name in ("queue_id", "ordering_key") if name in options}
        if options.get("any_broker"):
            terms["queue_id"] = AnyBroker(terms["queue_id"])
        return message, terms


def columns_of(message: Message, *, queue_id: int | None = None, ordering_key: str | None = None) -> dict[str, Any]:
    """Return the columns of a new row, by name, for a message.

    Args:
        queue_id, ordering_key: as of `Producer.send`.

    Raises:
        InvalidMessage: the message has a value and no body.
    """
    if message.body is NOT_SERIALIZED:
        raise InvalidMessage("an outbox stores bodies; give the message body= in place of value=")
    expiry = {name: text for name, text in message.properties.items() if name in _EXPIRY}
    options = {
        "tag": message.tag,
        "keys": message.keys,
        "properties": {name: text for name, text in message.properties.items() if name not in expiry},
        "expiry": expiry,
        "flag": message.flag,
        "delay": message.delay,
        "queue_id": queue_id,
        "any_broker": isinstance(queue_id, AnyBroker),
        "ordering_key": ordering_key,
    }
    return {
        "topic": message.topic,
        "body": bytes(message.body),
        "options": json.dumps(
            {name: value for name, value in options.items() if value or (name == "queue_id" and value == 0)}
        ),
        "unique_id": message.unique_id or uuid4().hex,
        "created_ms": time.time_ns() // 1_000_000,
        "error": "",
    }


@dataclass(slots=True)
class Outcome:
    """What became of rows.

    Attributes:
        sent: ids of rows that the broker has stored.
        refused: ids of rows that it refuses for good, with the reason.
        failure: why the others, if any, are not sent.
    """

    sent: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    failure: Exception | None = None

    def refused_by_reason(self) -> dict[str, list[int]]:
        """Return the ids of refused rows by the reason."""
        found: dict[str, list[int]] = {}
        for row_id, reason in self.refused.items():
            found.setdefault(reason, []).append(row_id)
        return found


class OutboxStore(Protocol):
    """The table of an outbox: columns `id` and those of `columns_of`; `error` is empty until a row is refused."""

    def relay(self, rows_max: int, send: Callable[[Sequence[OutboxRow]], Outcome]) -> Outcome:
        """Give `send` the first rows without an error, by id, and delete those that it has sent.

        It gets `rows_max` rows at most, and no further one after `PAGE_BYTES` bytes of bodies.
        Until this returns no other relay gets these rows. If the process is killed meanwhile, one gets them again.

        Raises:
            Exception: the database cannot be used; rows that were sent may be there still.
        """
        ...

    def retry(self) -> int:
        """Clear the errors of refused rows, so that they are sent again; return how many."""
        ...

    def close(self) -> None:
        """Let other relays have the table."""
        ...


_PAGE: Final = 400
"""Rows that are sent at a time, and sent again after an interruption. One statement deletes them: SQLite before 3.32
takes 999 values in a statement, and a row has two."""
_TIMEOUT_S: Final = 10.0
_OLD_MS: Final = 300_000
"""Half the default of the broker's `dedup.window`, within which it recognises a message that is sent again; for rows
that are older it looks further back."""
_WITHIN_S: Final = 366 * 86_400.0
"""How far then: to the beginning of the log. That is not the rule because it takes longer if the log is large."""
_PAUSE_S: Final = 0.2
_PAUSE_MAX_S: Final = 5.0
_FINAL: Final = frozenset({ErrorCode.INVALID_ARGUMENT, ErrorCode.NO_TOPIC, ErrorCode.NO_PERMISSION})

log = logging.getLogger("reput_client")


class Relay:
    """Sends the rows of an outbox to a broker, in the order of their ids, and deletes each when it is stored there.

    A row that was sent and not deleted, because the relay was killed or lost its database, is sent again, and the
    broker stores it once: it recognises the row's `unique_id` within `dedup.window`, and that of a row that is older
    than five minutes as long as it has the message. Several relays may run at a time, in any processes: none sends a
    row that another one is sending.

    A row that the broker refuses for good, for example for the size of its body, stays in the table with the reason in
    its column `error`, is logged, and does not delay the others; `OutboxStore.retry` sends it again. After any other
    error, for example while the store of the broker is read-only, the row is sent again.

    Args:
        store: the table, such as `SqlAlchemyOutbox.at(engine)`.
        address: `host:port` of a broker, several separated by commas, or a list of them.
        ack: when a row is deleted: with `page_cache`, `flushed` or `replicated`.
        poll_s: seconds between two looks into an empty table.
        ensure_topic: called with the name of a topic before the first row for it is sent, and again if the broker then
            does not have the topic. Returns True once the topic exists; False if the broker may create it with the
            first message (`topics.auto_create`), as it may without `ensure_topic`.
        client_options: `tls`, `credentials` and the other options that all clients have.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(
        self,
        store: OutboxStore,
        address: str | Iterable[str],
        *,
        ack: Ack = "flushed",
        poll_s: float = 0.2,
        ensure_topic: Callable[[str], bool] | None = None,
        **client_options: Any,
    ) -> None:
        if poll_s <= 0:
            raise ValueError(f"poll_s must be more than 0, not {poll_s}")
        self._store = store
        self._options = {"timeout_s": _TIMEOUT_S, **client_options, "address": address}
        ClientOptions(**self._options)
        self._ack: Ack = AckLevel(ack).value
        self._poll_s = poll_s
        self._ensure_topic = ensure_topic
        self._stop = threading.Event()
        self._producers: dict[tuple[bool, bool], Producer] = {}  # by whether rows are old, and topics ensured
        self._topics: dict[str, bool] = {}  # whether `ensure_topic` has ensured them
        self._missing: set[str] = set()  # topics that the broker did not have the last time

    def stop(self) -> None:
        """End `run` after the rows in progress. Never waits; any thread or signal handler may call it."""
        self._stop.set()

    def run(self) -> None:
        """Send rows as they are committed, until `stop`; while the broker or the database is away, try again."""
        pauses = Backoff(_PAUSE_S, _PAUSE_MAX_S)
        is_away = False
        try:
            while not self._stop.is_set():
                failure: Exception | None
                try:
                    outcome = self._step()
                    failure = outcome.failure
                except Exception as error:  # each database has errors of its own
                    failure = error
                if failure is not None:
                    if not is_away:
                        log.error("the outbox is not sent, and is tried again: %r", failure)
                    is_away = True
                    self._stop.wait(pauses.next_delay_s())
                    continue
                if is_away:
                    log.info("the outbox is sent again")
                    is_away = False
                    pauses.reset()
                if not outcome.sent and not outcome.refused:
                    self._stop.wait(self._poll_s)
        finally:
            self.close()

    def send_all(self) -> int:
        """Send the rows that there are; return how many.

        Raises:
            ReputError: a row is not sent, and stays in the table.
            Exception: the database cannot be used.
        """
        sent = 0
        while True:
            outcome = self._step()
            sent += len(outcome.sent)
            if isinstance(outcome.failure, TopicNotFound):
                continue  # once for each topic; it is ensured before the rows are sent again
            if outcome.failure is not None:
                raise outcome.failure
            if not outcome.sent and not outcome.refused:
                return sent

    def close(self) -> None:
        """Disconnect, and let other relays have the table."""
        with ExitStack() as closing:
            closing.callback(self._store.close)
            for producer in self._producers.values():
                closing.callback(producer.close)
            self._producers.clear()

    def _step(self) -> Outcome:
        outcome = self._store.relay(_PAGE, self._send)
        for row_id, reason in outcome.refused.items():
            log.error("row %s of the outbox is rejected, and stays there until it is retried: %s", row_id, reason)
        return outcome

    def _send(self, rows: Sequence[OutboxRow]) -> Outcome:
        """Send rows together; see `OutboxStore.relay`."""
        outcome = Outcome()
        posted: list[tuple[OutboxRow, Posted]] = []
        missing = frozenset(self._missing)
        try:
            are_old = _age_ms(rows) >= _OLD_MS  # the same for all, so that the order in a topic stays
            for row in rows:
                try:
                    message, terms = row.message()
                except Exception as error:  # it was not made by `columns_of`, or changed since
                    outcome.refused[row.id] = repr(error)
                    continue
                try:
                    producer = self._connected(are_old=are_old, is_ensured=self._ensures(row.topic))
                    posted.append((row, producer.post(message, **terms)))
                except ReputError as error:
                    self._note(row, error, outcome, missing)
                    if outcome.failure is not None:
                        break
        except Exception as error:  # `ensure_topic` may raise any
            outcome.failure = error
        for row, each in posted:
            try:
                each.result()
            except ReputError as error:
                self._note(row, error, outcome, missing)
            else:
                outcome.sent.append(row.id)
                self._missing.discard(row.topic)
        return outcome

    def _note(self, row: OutboxRow, error: ReputError, outcome: Outcome, missing: Collection[str]) -> None:
        """Note in `outcome` what an error means for a row.

        Args:
            missing: topics that the broker did not have when the rows before these were sent.
        """
        if isinstance(error, TopicNotFound):
            self._topics.pop(row.topic, None)
            self._missing.add(row.topic)
            if self._ensure_topic is not None and row.topic not in missing:
                outcome.failure = error  # the topic was deleted after it was ensured
                return
        if isinstance(error, BrokerError) and error.error is ErrorCode.DUPLICATE:
            # It was sent before, and something was added to its properties that differs: the context of a trace.
            outcome.sent.append(row.id)
        elif _is_final(error):
            outcome.refused[row.id] = str(error)
        else:
            outcome.failure = error

    def _connected(self, *, are_old: bool, is_ensured: bool) -> Producer:
        producer = self._producers.get((are_old, is_ensured))
        if producer is None:
            producer = Producer(
                group="reput-outbox",
                ack=self._ack,
                deduplicate=True,
                deduplicate_within_s=_WITHIN_S if are_old else None,
                # The broker would create a deleted topic with other settings.
                create_topics=not is_ensured,
                **self._options,
            ).__enter__()
            self._producers[are_old, is_ensured] = producer
        return producer

    def _ensures(self, topic: str) -> bool:
        """Call `ensure_topic` unless it was called for the topic before; return what it has returned."""
        if self._ensure_topic is None:
            return False
        if topic not in self._topics:
            self._topics[topic] = self._ensure_topic(topic)
        return self._topics[topic]


def _age_ms(rows: Sequence[OutboxRow]) -> int:
    return time.time_ns() // 1_000_000 - min(row.created_ms for row in rows)


def _is_final(error: ReputError) -> bool:
    """Whether it is because of the message or its topic that it was refused, so that it would be refused again."""
    if isinstance(error, InvalidMessage | MessageRefused):
        return True
    return isinstance(error, BrokerError) and error.error in _FINAL


FIND_FILE: Final = "SELECT file FROM pragma_database_list WHERE name = 'main'"
"""The statement by which a connection returns the path of its database; empty for a database in memory."""
_PRIMARY: Final = 0xFF  # of an extended error code


class SqliteLock:
    """A lock next to a database file, held until `release` or the end of the process, however it ends.

    It is the lock of another SQLite file, so the database itself stays free for its programs.

    Args:
        path: the database file; empty for a database in memory: there is no other process, and no lock.
        name: what is locked. Relays with other names do not wait for each other.
    """

    def __init__(self, path: str, name: str) -> None:
        self._path = Path(f"{path}-relay-{quote(name, safe='')}") if path else None
        self._held: sqlite3.Connection | None = None

    def acquire(self) -> bool:
        """Take the lock, unless another relay has it; return whether this one has.

        Raises:
            sqlite3.Error: the file cannot be written.
        """
        if self._path is None or self._held is not None:
            return True
        connection = sqlite3.connect(self._path, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            # Writes, so that a directory or a disk where this is not possible is noticed.
            connection.execute("PRAGMA user_version = 1")
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            connection.close()
            if error.sqlite_errorcode & _PRIMARY == sqlite3.SQLITE_BUSY:
                return False
            raise
        self._held = connection
        return True

    def release(self) -> None:
        """Let another relay have it."""
        if self._held is not None:
            self._held.close()
            self._held = None
