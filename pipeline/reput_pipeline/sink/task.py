"""A task of the sink: sends the rows of a partition as blocks, to be staged or put."""

from __future__ import annotations

import os
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput_client.blocking import Message
from reput_client.blocking.bulk import Attempts, BulkReader, StagingProducer
from reput_client.produce.staging_producer import StagingScope
from reput_client.produce.unique_ids import new_generator
from reput_client.receipts import Posted
from reput_pipeline.sink.options import SinkColumns, SinkOptions
from reput_pipeline.sink.rows import ANY_QUEUE, BadRows, Columns, Messages, RowReader, encode_records
from reput_pipeline.spark.errors import BatchNotWritten, SinkError, note
from reput_pipeline.spark.option_reader import credentials_for, naming_tls_options
from reput_protocol.commands.stage import StagedPart
from reput_protocol.errors import ErrorCode, InvalidMessage, MessageRefused, NotFound, TopicNotFound
from reput_protocol.kernel.records import crc32
from reput_protocol.printable import counted
from reput_protocol.properties import CRC32, KEYS, TAGS, UNIQ_KEY
from reput_protocol.property_rules import without_effect
from reput_protocol.record.delays import moment_of, take_expiry

_NO_QUEUES: Final = (0,)


def connect(options: SinkOptions, broker: str) -> StagingProducer:
    """Return a producer for a broker; it connects on `with`."""
    return StagingProducer(
        options.name_servers,
        broker,
        group="reput-sink",
        ack=options.ack,
        timeout_s=options.send_timeout_s,
        tls=options.tls,
        credentials=credentials_for(options.user),
    )


@naming_tls_options()
def brokers_of(options: SinkOptions) -> list[str]:
    """Return the names of the brokers that take the rows: those of the topic if the query has one, or all.

    Raises:
        RequestTimeout, ConnectFailed, BrokerNotFound: no address answers in time, or none knows a broker.
        SinkError: the topic cannot be written anywhere.
    """
    reader = BulkReader(
        options.name_servers,
        timeout_s=options.send_timeout_s,
        tls=options.tls,
        credentials=credentials_for(options.user),
    )
    try:
        names = Attempts(retries=0, for_s=options.send_timeout_s)(reader.brokers, options.topic)
    finally:
        reader.close()
    if not names:
        raise _no_queue()
    return names


def broker_of(brokers: Sequence[str], query_id: str, number: int) -> str:
    """Return the broker for a part of a query: its parts go to one broker after the other.

    The same for every attempt, as long as there are the same brokers.
    """
    return brokers[(crc32(query_id.encode()) + number) % len(brokers)]


class SinkTask:
    """Writes one partition."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._rows = RowReader(columns, options.topic)
        self._columns = columns
        self._queues: dict[str, Iterator[int]] = {}
        self._queue_counts: dict[str, int] = {}
        self._new_topic_queues: int | None = None
        self._largest = (-1, "")
        """The size of the largest body so far, and the words for its message."""
        self._ids = new_generator()
        self._exactly_once = options.exactly_once
        self._posted: deque[Posted] = deque()
        """What was put and is not known to be acknowledged."""
        self.messages = 0
        self.broker = ""
        """The name of the broker that gets the rows."""

    @naming_tls_options()
    def stage(
        self, record_batches: Iterator[pa.RecordBatch], query_id: str, batch_id: int, partition_id: int
    ) -> StagedPart | None:
        """Stage all rows and return the staging; None without rows, or if the batch is committed already.

        Raises:
            SinkError: a row cannot be a message.
            BatchNotWritten: the broker lost what was staged, and the rows are not here any more.
            BrokerError, RequestTimeout, ConnectFailed: the broker refused, or did not answer in time.
        """
        brokers = brokers_of(self._options)
        self.broker = broker_of(brokers, query_id, batch_id)
        for other in brokers:
            if other != self.broker and is_committed(self._options, other, query_id, batch_id):
                return None
        with connect(self._options, self.broker) as writer, self._refusals_named():
            state = writer.query_staged(query_id)
            if state.last_batch_id >= batch_id:
                return None
            self._new_topic_queues = state.new_topic_queues
            writer.begin(StagingScope(query_id, batch_id, partition_id, uuid.uuid4().hex))
            try:
                for messages in self._messages(writer, record_batches):
                    self._write(writer, messages)
                return writer.end() if self.messages else None
            except NotFound as error:  # and the rows were too many to be kept, or it was lost too often
                raise BatchNotWritten(batch_id, str(error)) from error

    @naming_tls_options()
    def put(self, record_batches: Iterator[pa.RecordBatch], query_id: str, number: int) -> None:
        """Put all rows at least once; on return they have reached the ack level.

        Raises as `stage`, and `SendOutcomeUnknown`, if rows may be stored although the broker has not said so.

        `number` differs between the tasks and batches of a query, which so use all brokers.
        """
        self.broker = broker_of(brokers_of(self._options), query_id, number)
        with connect(self._options, self.broker) as writer, self._refusals_named():
            for messages in self._messages(writer, record_batches):
                if messages.deliver_at is not None and messages.deliver_at.null_count < len(messages.deliver_at):
                    messages = self._put_delayed(writer, messages)
                if len(messages.columns.body):
                    self._write(writer, messages)
            self._await_posted()

    def _messages(self, writer: StagingProducer, record_batches: Iterator[pa.RecordBatch]) -> Iterator[Messages]:
        """Yield the messages of record batches; a row that cannot be one is an error, or a message of another topic."""
        dead_letter_topic = self._options.dead_letter_topic
        if dead_letter_topic is None:
            for batch in record_batches:
                yield from self._rows.messages(batch)
            return
        body_max = writer.limits().body_bytes_max
        rows = BadRows(self._columns, partial(self._check, writer, body_max))
        first = bad = 0
        for batch in record_batches:
            for part, number in rows.sift(batch, first):
                self._rows.next_row = number
                yield from self._rows.messages(part)
            first += batch.num_rows
            letters = rows.take(body_max)
            if letters is not None:
                bad += len(letters.body)
                yield Messages(dead_letter_topic, ANY_QUEUE, letters, None)
        if bad:
            note(f"{counted(bad, 'row')} that cannot be messages are sent to topic {dead_letter_topic}")

    def _check(self, writer: StagingProducer, body_max: int, batch: pa.RecordBatch, first: int) -> None:
        """Raise `SinkError` if a row cannot be written."""
        self._rows.next_row = first
        for topic, queue_id, columns, deliver_at in self._rows.messages(batch):
            sizes = np.asarray(pc.binary_length(columns.body))
            row = int(sizes.argmax())
            if sizes[row] > body_max:
                raise SinkError(
                    f"{columns.name_of(row)}, for topic {topic!r}, has a body of {sizes[row]} bytes, but the broker "
                    f"accepts at most {body_max}"
                )
            try:
                queues = writer.write_queues(topic)
            except TopicNotFound as error:
                raise SinkError(f"{columns.name_of(0)}: {error}") from None
            there = len(self._new_queues(writer) if queues is None else queues)
            if queue_id != ANY_QUEUE and self._mapped(queue_id, there) >= there:
                raise self._no_such_queue(columns, topic, queue_id, there)
            now_ms = time.time_ns() // 1_000_000
            for _ in encode_records(columns, topic, repeat_queue(0).__next__, self._ids, now_ms):
                pass
            if deliver_at is not None:
                for _ in _delayed_messages(topic, *_delayed(columns, deliver_at)):
                    pass

    def _write(self, writer: StagingProducer, messages: Messages) -> None:
        topic, queue_id, columns, _ = messages
        if topic not in self._queues:
            columns = self._open_topic(writer, topic, queue_id, columns)
        if queue_id == ANY_QUEUE:
            self._write_blocks(writer, topic, self._queues[topic], columns)
        elif len(columns.body):
            there = self._queue_counts[topic]
            found = self._mapped(queue_id, there)
            if found >= there:
                raise self._no_such_queue(columns, topic, queue_id, there)
            self._write_blocks(writer, topic, repeat_queue(found), columns)

    def _no_such_queue(self, columns: Columns, topic: str, queue_id: int, there: int) -> SinkError:
        column = self._columns.queue_id
        return SinkError(
            f"{columns.name_of(0)}: topic {topic!r} has no queue {queue_id} that takes messages at broker "
            f'{self.broker}, which has {there}; drop {column} for any queue (frame.drop("{column}")), set '
            f"queueMapping=modulo for queue {column} % {there}, or give the topic more queues"
        )

    def _mapped(self, queue_id: int, there: int) -> int:
        """Return the queue for messages of a queue, of those that are there, 0 to `there` - 1."""
        return queue_id % there if self._options.maps_queues and there else queue_id

    def _new_queues(self, writer: StagingProducer) -> list[int]:
        """Return the queues of a topic that does not exist yet."""
        if self._new_topic_queues is None:
            self._new_topic_queues = writer.limits().new_topic_queues
        return list(range(self._new_topic_queues))

    def _open_topic(self, writer: StagingProducer, topic: str, queue_id: int, columns: Columns) -> Columns:
        """Find the queues of a topic, and return the messages that are still to be written.

        At least once, the first message of a topic that does not exist is sent here: it creates the topic.
        """
        known = writer.write_queues(topic)
        if known is None and self._exactly_once:  # the commit creates it
            known = self._new_queues(writer)
        elif known is None:  # the first message creates it
            first = max(0, queue_id)
            if self._options.maps_queues:
                first = self._mapped(first, len(self._new_queues(writer)))
            self._write_blocks(writer, topic, repeat_queue(first), columns.slice(0, 1))
            self._await_posted()
            columns = columns.slice(1, len(columns.body))
            known = writer.write_queues(topic) or list(_NO_QUEUES)
        self._queue_counts[topic] = len(known)
        self._queues[topic] = _in_turn(known)
        return columns

    @contextmanager
    def _refusals_named(self) -> Iterator[None]:
        """Add the message to a refusal for its size: whichever is refused, the largest is too large as well."""
        try:
            yield
        except MessageRefused as error:
            if error.error is not ErrorCode.TOO_LARGE:
                raise
            size, name = self._largest
            raise SinkError(
                f"{error}; the largest message is {name}, with a body of {size} bytes: store the body elsewhere, or "
                "raise the broker's store.message_size_max"
            ) from None

    def _write_blocks(self, writer: StagingProducer, topic: str, queues: Iterator[int], columns: Columns) -> None:
        if not len(columns.body):
            return
        sizes = np.asarray(pc.binary_length(columns.body))
        row = int(sizes.argmax())
        if sizes[row] > self._largest[0]:
            self._largest = int(sizes[row]), f"{columns.name_of(row)}, for topic {topic!r}"
        now_ms = time.time_ns() // 1_000_000
        for block in encode_records(columns, topic, queues.__next__, self._ids, now_ms):
            if self._exactly_once:
                writer.stage(topic, block.queue_id, block.messages, block.data)
            else:
                self._keep(writer.post_block(topic, block.queue_id, block.messages, block.data))
            self.messages += block.messages

    def _keep(self, posted: Posted) -> None:
        """Keep what was posted until it is acknowledged; raises the first failure of what is done."""
        self._posted.append(posted)
        while self._posted and self._posted[0].done:
            self._posted.popleft().result()

    def _await_posted(self) -> None:
        """Wait until everything is acknowledged; raises the first failure."""
        while self._posted:
            self._posted.popleft().result()

    def _put_delayed(self, writer: StagingProducer, messages: Messages) -> Messages:
        """Post the delayed messages, and return the others."""
        deliver_at = messages.deliver_at
        assert deliver_at is not None, "there are delayed messages"
        at_once = np.asarray(deliver_at.is_null())
        queue_id = None
        if messages.queue_id != ANY_QUEUE:
            known = writer.write_queues(messages.topic) or self._new_queues(writer)
            queue_id = self._mapped(messages.queue_id, len(known))
        delayed = _delayed(messages.columns, deliver_at)
        for message in _delayed_messages(messages.topic, *delayed):
            self._keep(writer.post(message, queue_id=queue_id))
            self.messages += 1
        return messages._replace(columns=messages.columns.take(np.flatnonzero(at_once)), deliver_at=None)


def is_committed(options: SinkOptions, broker: str, query_id: str, batch_id: int) -> bool:
    """Whether a broker has published a batch, or a later one of its query."""
    with connect(options, broker) as writer:
        return writer.query_staged(query_id).last_batch_id >= batch_id


def _no_queue() -> SinkError:
    return SinkError("the topic has no queue that takes messages; alter its permission")


def _delayed(columns: Columns, deliver_at: pa.Array) -> tuple[Columns, list[int]]:
    """Return the messages with a delivery time, and these times in ms."""
    rows = np.flatnonzero(np.asarray(deliver_at.is_valid()))
    return columns.take(rows), deliver_at.drop_null().to_pylist()


def _delayed_messages(topic: str, columns: Columns, times_ms: list[int]) -> Iterator[Message]:
    """Yield the messages as they are sent alone, with what `encode_records` writes.

    Raises:
        SinkError: one cannot be sent.
    """
    now_ms = time.time_ns() // 1_000_000
    for row, when in enumerate(times_ms):

        def value(column: pa.Array | None, row: int = row) -> Any:
            return None if column is None else column[row].as_py()

        properties = {name: text for name, text in (value(columns.properties) or ()) if text}
        for name in (*without_effect(properties, now_ms), CRC32):
            properties.pop(name, None)
        tag, keys, unique_id = (properties.pop(name, None) for name in (TAGS, KEYS, UNIQ_KEY))
        tag = tag if columns.tags is None else value(columns.tags)
        keys = keys if columns.keys is None else value(columns.keys)
        try:
            expiry = take_expiry(properties)
            message = Message(
                topic,
                columns.body[row].as_py(),
                tag=tag or None,
                keys=(keys or "").split(),
                properties=properties,
                flag=int(value(columns.flag) or 0),
                unique_id=unique_id,
                deliver_at=moment_of(when),
                **expiry,
            )
        except (InvalidMessage, OverflowError, ValueError) as error:
            raise SinkError(f"{columns.name_of(row)}, for topic {topic!r}: {error}") from None
        yield message


def repeat_queue(queue_id: int) -> Iterator[int]:
    """Yield one queue forever."""
    while True:
        yield queue_id


def _in_turn(queues: list[int]) -> Iterator[int]:
    """Cycle through queues from a random one on, so that tasks do not write to the same one."""
    if not queues:
        raise _no_queue()
    first = int.from_bytes(os.urandom(2), "big")
    for number in count(first):
        yield queues[number % len(queues)]
