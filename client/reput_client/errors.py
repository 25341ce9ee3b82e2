"""All errors that the client raises; `reput_client` exports them too.

Errors of messages, names and filters, and the broker's refusals (`BrokerError`), are shared with the broker.
docs/client.md says for each whether the message may be stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reput_protocol.errors import (
    BrokerBusy,
    BrokerError,
    ErrorCode,
    FilterRefused,
    FilterSyntaxError,
    GroupNotFound,
    InvalidMessage,
    InvalidName,
    MessageRefused,
    NotFound,
    NotMaster,
    OffsetOutOfRange,
    PermissionDenied,
    ProtocolError,
    RecordMalformed,
    ReputError,
    RequesterGone,
    RequestNotSupported,
    StoreUnavailable,
    TopicNotFound,
    TransactionEnded,
)
from reput_protocol.printable import counted

if TYPE_CHECKING:
    from reput_client.receipts import Posted, SendReceipt
    from reput_protocol.record.message import MessageQueue

__all__ = [
    "AckNotReached",
    "AmbiguousQueue",
    "BrokerBusy",
    "BrokerError",
    "BrokerNotFound",
    "BrokersFailed",
    "BucketRefused",
    "BucketUnavailable",
    "ClientClosed",
    "ConnectFailed",
    "ConnectionLost",
    "DamagedMessage",
    "DamagedStore",
    "DataLost",
    "ErrorCode",
    "FilterRefused",
    "FilterSyntaxError",
    "GroupNotFound",
    "InflatedTooLarge",
    "InvalidHandle",
    "InvalidMessage",
    "InvalidName",
    "MessageRefused",
    "NoQueue",
    "NotABroker",
    "NotAStore",
    "NotDelivered",
    "NotDeserialized",
    "NotFound",
    "NotMaster",
    "OffsetOutOfRange",
    "OffsetStoreDamaged",
    "OffsetStoreInUse",
    "PartlyAcknowledged",
    "PartlySent",
    "PermissionDenied",
    "PostsFailed",
    "ProtocolError",
    "QueueNotAssigned",
    "RecordMalformed",
    "RegistryRefused",
    "RegistryUnavailable",
    "ReplyTimeout",
    "ReputError",
    "RequestNotSupported",
    "RequestTimeout",
    "RequesterGone",
    "SchemaNotFound",
    "SendOutcomeUnknown",
    "StoreUnavailable",
    "TlsRefused",
    "TopicNotFound",
    "TransactionEnded",
    "UnsupportedCompression",
]


class ConnectFailed(ReputError, ConnectionError):
    """No connection to `address` could be made; nothing was sent. `reason` is the system's text, or who answered.

    `announced_for` is the broker for which another address announced this one, or None.
    """

    retryable = True
    announced_for: str | None = None

    def __init__(self, address: str, reason: str, announced_for: str | None = None) -> None:
        remedy = "check the address and that the broker is running"
        if announced_for is not None:
            remedy = (
                f"the route names this address for broker {announced_for!r}: "
                "check that it is running and its option `advertise`"
            )
        super().__init__(f"cannot connect to {address}: {reason}; {remedy}")
        self.address = address
        self.reason = reason
        self.announced_for = announced_for


class NotABroker(ConnectFailed):
    """The server at `address` speaks another protocol; requests had no effect. Not retried."""

    retryable = False

    def __init__(self, address: str, reason: str) -> None:
        ReputError.__init__(self, f"{address} is not a broker's port for clients: {reason}")
        self.address = address
        self.reason = reason


class TlsRefused(ConnectFailed):
    """No encrypted connection to `address`: one side does not accept the other's certificate, or has no TLS.

    Requests had no effect. Not retried, because a repetition would end in the same way. `cause` and `remedy` are the
    parts of the reason.
    """

    retryable = False

    def __init__(self, address: str, reason: str, remedy: str) -> None:
        ReputError.__init__(self, f"cannot connect to {address}: {reason}; {remedy}")
        self.address = address
        self.reason = f"{reason}; {remedy}"
        self.cause = reason
        self.remedy = remedy


class ConnectionLost(ReputError, ConnectionError):
    """The connection to `address` ended before the answer came.

    The cause of a `SendOutcomeUnknown`, or of a `RequestTimeout` if the deadline left no time: the client reconnects
    and repeats what is safe to repeat.
    """

    retryable = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"connection to {address} lost: {reason}")
        self.address = address
        self.reason = reason


class RequestTimeout(ReputError, TimeoutError):
    """No answer to `what` within `timeout_s` seconds. A send that raises this did not leave the client."""

    retryable = True

    def __init__(self, what: str, timeout_s: float, reason: ReputError | str | None = None) -> None:
        super().__init__(f"{what}: no response within {timeout_s:.2g} s{'' if reason is None else f'; {reason}'}")
        self.what = what
        self.timeout_s = timeout_s


class ReplyTimeout(ReputError, TimeoutError):
    """A request to `topic` got no reply within `timeout_s` seconds; whether it was handled is unknown.

    `correlation_id` is the one that its consumer sees. `is_stored`: the broker certainly has the request. A later reply
    is dropped.
    """

    def __init__(self, topic: str, correlation_id: str, timeout_s: float, *, is_stored: bool) -> None:
        how = "is stored" if is_stored else "may be stored"
        super().__init__(
            f"request {correlation_id} to {topic} {how}, but no reply has come within {timeout_s:.3g} s; it may have "
            "been handled, or may still be"
        )
        self.topic = topic
        self.correlation_id = correlation_id
        self.timeout_s = timeout_s
        self.is_stored = is_stored


class SendOutcomeUnknown(ReputError):
    """The messages left the client and no answer came: the broker may or may not have stored them.

    Sending them again may store them twice, unless the broker deduplicates. `message_ids` are the unique ids to search
    for (empty if the producer writes none).
    """

    def __init__(self, topic: str, queue_id: int, message_ids: Sequence[str], reason: str) -> None:
        super().__init__(
            f"send to {topic}/{queue_id}: outcome unknown, {reason}; "
            "the broker may have stored it: sending again can store it twice"
        )
        self.topic = topic
        self.queue_id = queue_id
        self.message_ids = list(message_ids)
        self.reason = reason


class AckNotReached(ReputError):
    """The messages are stored, but the asked level was not reached in time.

    They stay, unless the broker's machine fails before it is reached (`flushed`) or another broker becomes the master
    (`replicated`). Sending them again may store them twice; a producer with `deduplicate` does it without that, and
    raises this only after the last repetition.

    `receipts` are theirs; `response_code` is the broker's (RocketMQ: FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT,
    SLAVE_NOT_AVAILABLE).
    """

    def __init__(self, asked: str, receipts: Sequence[SendReceipt], response_code: int, remark: str | None) -> None:
        super().__init__(
            f"stored, but {str(asked)!r} was not reached (code {response_code}{f', {remark}' if remark else ''}): "
            f"{'a failover' if asked == 'replicated' else 'a power cut'} may still lose it, and sending it again "
            "can store it twice"
        )
        self.asked = asked
        self.receipts = list(receipts)
        self.response_code = response_code
        self.remark = remark

    @property
    def receipt(self) -> SendReceipt:
        """The first receipt; a single send's only one."""
        return self.receipts[0]


class PartlySent(ReputError):
    """Some messages of a send of many are stored and some are not.

    `receipts` has an entry for each message, None if it is not known to be stored; `errors` maps the index of each
    failed message to its error. Messages in neither were not sent.
    """

    def __init__(self, receipts: Sequence[SendReceipt | None], errors: Mapping[int, ReputError]) -> None:
        stored = sum(receipt is not None for receipt in receipts)
        first = min(errors, default=0)
        super().__init__(f"{counted(stored, 'message')} stored, then message {first} failed: {errors.get(first)}")
        self.receipts = list(receipts)
        self.errors = dict(errors)


class PostsFailed(ReputError):
    """Raised by `flush`: posted messages failed, and no callback or waiting caller has reported it.

    `count` is their number; `failed` has their handles, each with its `error`, but only the last ones of very many. A
    pickled copy has no handles.
    """

    def __init__(self, failed: Sequence[Posted], count: int) -> None:
        first = failed[0].error if failed else None
        super().__init__(f"{counted(count, 'posted message')} failed{', one of them' if count > 1 else ''}: {first}")
        self.failed = list(failed)
        self.count = count

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the handles, which cannot be pickled."""
        rebuild, (kind, args, state) = super().__reduce__()
        return rebuild, (kind, args, {**state, "failed": []})


class BrokerNotFound(ReputError):
    """No address of a master is known: of broker `name`, of a broker with `topic`, or of any broker.

    An empty `name` or `topic` means any. What is known was fetched again before.
    """

    retryable = True

    def __init__(self, name: str, topic: str) -> None:
        broker = f"broker {name!r}" if name else "any broker"
        of_topic = f" of topic {topic!r}" if topic else ""
        super().__init__(
            f"no master of {broker}{of_topic} is known; start it, or check the brokers with `reput cluster status`"
        )
        self.name = name
        self.topic = topic


class BrokersFailed(ReputError):
    """Of several brokers that were asked for `what`, some failed; `done` have done it.

    `failures` has each failed broker's error by its name. `retryable` if all of them are.
    """

    def __init__(self, what: str, failures: Mapping[str, ReputError], done: Sequence[str]) -> None:
        each = "; ".join(f"broker {name!r}: {error}" for name, error in failures.items())
        others = f"; done by {', '.join(map(repr, done))}" if done else ""
        super().__init__(f"{what}: {each}{others}")
        self.what = what
        self.failures = dict(failures)
        self.done = list(done)
        self.retryable = all(error.retryable for error in failures.values())


class AmbiguousQueue(ReputError):
    """Each of `brokers` has a queue `queue_id` of the topic, and `broker_name=` was not given."""

    def __init__(self, topic: str, queue_id: int, brokers: Sequence[str]) -> None:
        super().__init__(
            f"brokers {', '.join(map(repr, brokers))} each have a queue {queue_id} of topic {topic!r}; "
            "pass broker_name= to say which one is meant"
        )
        self.topic = topic
        self.queue_id = queue_id
        self.brokers = list(brokers)


class NoQueue(ReputError):
    """A topic has no queue for the requested use."""

    def __init__(self, topic: str, what: str) -> None:
        super().__init__(f"topic {topic!r} has no {what}; check its queues and permission")
        self.topic = topic


class NotDelivered(ReputError):
    """No `Consumer` delivered the message, or it is a copy, so it cannot be acknowledged or given back."""

    def __init__(self, message: object) -> None:
        super().__init__(
            f"{message} was not delivered by a Consumer, or is a copy; call ack, nack or reject of the message that it "
            "delivered, and with a PullConsumer commit its offset"
        )


class QueueNotAssigned(ReputError):
    """`queue` is not assigned to this member of the group now; nothing was changed."""

    def __init__(self, queue: MessageQueue, assignment: Sequence[MessageQueue]) -> None:
        super().__init__(
            f"queue {queue} is not assigned to this member, which has {counted(len(assignment), 'queue')}; use one of "
            "Consumer.assignment, or wait until on_assigned is called with it"
        )
        self.queue = queue


class ClientClosed(ReputError):
    """The client was closed before or during the call. Nothing more was sent."""

    def __init__(self, reason: str = "the client is closed; make a new one") -> None:
        super().__init__(reason)


class DamagedMessage(ReputError):
    """A pulled message fails its checksum or cannot be decompressed; its content is not returned.

    Continue with the next one, or examine the place with `reput store verify` on the broker's machine.
    """

    def __init__(self, topic: str, queue_id: int, queue_offset: int, reason: str) -> None:
        super().__init__(f"message {topic}/{queue_id} at offset {queue_offset}: {reason}")
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.reason = reason


class NotAStore(ReputError):
    """`path` is not a store directory."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path} is not a store directory: {reason}; give the directory that holds commitlog and consumequeue "
            "(with Spark, at the same path on every executor)"
        )
        self.path = path


class BucketUnavailable(ReputError):
    """A bucket, or another file system that is not this machine's, does not respond, or fails again and again."""

    retryable = True

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url} cannot be reached: {reason}; check its address, and try again later")
        self.url = url


class BucketRefused(ReputError):
    """A bucket does not exist, or its object store rejects the credentials."""

    def __init__(self, url: str, reason: str, remedy: str) -> None:
        super().__init__(f"{url}: the object store rejected a request: {reason}; {remedy}")
        self.url = url


class DataLost(ReputError):
    """Messages that were to be read were deleted, or never existed."""

    def __init__(self, queue: object, reason: str, remedy: str = "read it again, from where it starts now") -> None:
        super().__init__(f"queue {queue}: {reason}; {remedy}")


class DamagedStore(ReputError):
    """A record, or a queue entry that points to it, is damaged.

    `place` and `offset` are a file and a byte position, or a queue and a message's offset.
    """

    def __init__(self, place: str, offset: int, reason: str, remedy: str = "'reput store verify' tells more") -> None:
        super().__init__(f"{place} {offset}: {reason}; {remedy}")
        self.place = place
        self.offset = offset
        self.reason = reason


class NotDeserialized(ReputError):
    """A message's `deserializer` raised for its body, so it has no `value`; `body` is readable.

    `__cause__` is what the deserializer raised, and `reason` its text.
    """

    def __init__(self, topic: str, queue_id: int, queue_offset: int, reason: str) -> None:
        super().__init__(
            f"message {topic}/{queue_id} at offset {queue_offset} cannot be deserialized: {reason}; reject it, or "
            "deserialize its body in another way"
        )
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.reason = reason


class RegistryUnavailable(ReputError):
    """A schema registry cannot be reached, or is out of order. It says nothing about the message or the value."""

    retryable = True

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"schema registry {url} is not available: {reason}; check the URL and that it is running")
        self.url = url
        self.reason = reason


class RegistryRefused(ReputError):
    """A schema registry rejected a request. It says nothing about the message or the value.

    `status` is that of HTTP: 401 and 403 for credentials, 409 for a schema that is incompatible with the subject's,
    422 for an invalid schema. `code` is the registry's own, or 0.
    """

    def __init__(self, url: str, what: str, status: int, code: int, reason: str) -> None:
        super().__init__(f"schema registry {url} rejected the request for {what}: {reason}")
        self.url = url
        self.status = status
        self.code = code
        self.reason = reason


class SchemaNotFound(ReputError):
    """A schema registry has no schema with this id, or none like this under the subject."""

    def __init__(self, url: str, what: str) -> None:
        super().__init__(
            f"schema registry {url} does not have {what}; check that it is the producer's registry, or register the "
            "schema (register=True)"
        )
        self.url = url
        self.what = what


class InflatedTooLarge(ReputError):
    """A pull's compressed bodies exceed `limit` bytes together; those of the first `rows` rows fit."""

    def __init__(self, topic: str, queue_id: int, limit: int, rows: int) -> None:
        super().__init__(
            f"compressed bodies of {topic}/{queue_id} inflate to more than max_inflated={limit} bytes; take fewer rows "
            f"at once, such as columns.take(slice({max(1, rows)})), or raise max_inflated"
        )
        self.limit = limit
        self.rows = rows


class UnsupportedCompression(ReputError):
    """A body's compression is not supported; the message's `raw_body` is readable."""

    def __init__(self, topic: str, queue_id: int, queue_offset: int, method: str) -> None:
        super().__init__(
            f"message {topic}/{queue_id} at offset {queue_offset} is compressed with {method}, which is not supported "
            "here; decompress its raw_body, or have its producer use zlib"
        )
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.method = method


class InvalidHandle(ReputError):
    """A popped message cannot be acknowledged or given another invisible time by its handle any more; nothing changed.

    Usually its invisible time has ended, and the group receives it again.
    """

    def __init__(self, topic: str, queue_id: int, queue_offset: int, reason: str) -> None:
        super().__init__(
            f"the handle of popped message {topic}/{queue_id} at offset {queue_offset} is not valid any more: {reason}"
            "; unless it was acknowledged it is redelivered: handle it then, and extend its time earlier or pop with a "
            "longer invisible_s"
        )
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.reason = reason


class PartlyAcknowledged(ReputError):
    """Of `count` popped messages some are not acknowledged: `errors` maps their indices to the reasons.

    The others are. Those with an `InvalidHandle` are redelivered; the others can be acknowledged again. `retryable`
    if all of `errors` are.
    """

    def __init__(self, count: int, errors: Mapping[int, ReputError]) -> None:
        first = min(errors)
        super().__init__(
            f"{count - len(errors)} of {counted(count, 'message')} acknowledged; message {first} failed: "
            f"{errors[first]}"
        )
        self.count = count
        self.errors = dict(errors)
        self.retryable = all(error.retryable for error in errors.values())


class OffsetStoreInUse(ReputError):
    """Another consumer on this machine uses the offset file; nothing was read or changed."""

    retryable = True  # once that one has ended

    def __init__(self, path: str) -> None:
        super().__init__(
            f"offset file {path} belongs to another consumer of this group that broadcasts; "
            "give each one its own instance="
        )
        self.path = path


class OffsetStoreDamaged(ReputError):
    """Neither the offset file nor its backup can be read; nothing was changed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"offset file {path}: {reason}; restore it or delete it to start over")
        self.path = path
        self.reason = reason
