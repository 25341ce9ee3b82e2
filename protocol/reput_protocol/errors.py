"""The project's exceptions, and the table of a broker's refusals.

A refusal is a RocketMQ response code and a remark "SYMBOL: text; remedy": RocketMQ's clients get a code that they know,
people a remedy, and Reput's client the exact `ErrorCode`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from reput_protocol.codes import ResponseCode

_SHOWN_AROUND = 40


class ReputError(Exception):
    """The base class of all exceptions that this project raises on purpose. They can be pickled."""

    retryable: bool = False
    """Whether the same call may succeed if it is made again later, without any change.

    True only if the repetition is safe: the failed call had no effect, or one that a second call does not add to.
    False: the call would fail in the same way, or the failed one may have stored what the repetition would store again.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the attributes: a subclass's constructor takes facts, not the message."""
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[ReputError], args: tuple[Any, ...], state: dict[str, Any]) -> ReputError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


def leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions in a group and in the groups in it; of any other exception, itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for member in error.exceptions for leaf in leaves(member)]
    return [error]


class ProtocolError(ReputError):
    """The peer sent bytes that violate the protocol; the connection is unusable."""


class FrameMalformed(ProtocolError):
    """A frame's lengths contradict each other."""


class FrameTooLarge(ProtocolError):
    """A frame, or its header, announces more bytes than are accepted. None was buffered."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} of {size} bytes, but at most {limit} are accepted")
        self.what = what
        self.size = size
        self.limit = limit


class HeaderMalformed(ProtocolError):
    """A header is not valid for the type that its frame announces."""


class UnknownHeaderType(ProtocolError):
    """A frame announces an unknown header type."""

    def __init__(self, header_type: int) -> None:
        super().__init__(
            f"header type {header_type:#04x} is unknown; valid are 0x00 (JSON), 0x01 (binary), 0x4d (msgpack)"
        )
        self.header_type = header_type


class HeaderFieldError(ProtocolError):
    """A header field is missing or has a wrong type.

    The frame is valid, so a server answers `INVALID_ARGUMENT` and keeps the connection.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"header field {name!r} {reason}")
        self.name = name
        self.reason = reason


class BodyMalformed(ProtocolError):
    """A JSON body is not valid, or a member has a wrong type; the connection stays usable."""


class TlsFailed(ReputError):
    """An encrypted connection could not be made, or broke. `cause` and `remedy` are the parts of the text.

    `refuses_certificate`: the other side has refused the certificate of this one, so it has acted on nothing.
    """

    def __init__(self, cause: str, remedy: str, *, refuses_certificate: bool = False) -> None:
        super().__init__(f"TLS: {cause}; {remedy}")
        self.cause = cause
        self.remedy = remedy
        self.refuses_certificate = refuses_certificate


class RecordError(ReputError):
    """An encoded message record is not valid."""


class RecordMalformed(RecordError):
    """A record cannot be accepted or decoded.

    `index` is its number in its block, `position` its first byte there.
    """

    def __init__(self, index: int, position: int, reason: str) -> None:
        super().__init__(f"record {index} at byte {position}: {reason}")
        self.index = index
        self.position = position
        self.reason = reason


class InvalidMessage(ReputError, ValueError):
    """The caller's message cannot be sent; nothing was sent."""


class InvalidName(InvalidMessage):
    """A topic or group name is not valid; the text says why."""


class FilterSyntaxError(ReputError, ValueError):
    """A filter expression cannot be parsed; `position` is the character of the error, from 0.

    With the `expression`, the text shows that place.
    """

    def __init__(self, reason: str, position: int, expression: str | None = None) -> None:
        text = f"{reason} (at character {position})"
        super().__init__(text if expression is None else f"{text}\n{_pointed_at(expression, position)}")
        self.reason = reason
        self.position = position
        self.expression = expression


def _pointed_at(expression: str, position: int) -> str:
    start = max(0, min(position - _SHOWN_AROUND, len(expression) - 2 * _SHOWN_AROUND))
    end = start + 2 * _SHOWN_AROUND
    before, after = "..." * (start > 0), "..." * (end < len(expression))
    shown = "".join(char if char.isprintable() else " " for char in expression[start:end])
    return f"  {before}{shown}{after}\n  {' ' * (len(before) + position - start)}^"


class ErrorCode(Enum):
    """Why a broker refuses: stable number, whether a retry helps, the nearest response code.

    `retryable`: the same request can succeed a little later, and the refused one stored nothing.

    The text below each member is its meaning and remedy on the site's page of errors.
    """

    NO_TOPIC = (1, False, ResponseCode.TOPIC_NOT_EXIST)
    """The topic does not exist and is not created on use. Create it, or switch `topics.auto_create` on."""
    NO_GROUP = (2, False, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    """The consumer group does not exist. Create it, or switch `groups.auto_create` on."""
    NO_PERMISSION = (3, False, ResponseCode.NO_PERMISSION)
    """Topic or broker does not allow it, or only the broker writes there. Change the topic's permission."""
    UNAUTHENTICATED = (4, False, ResponseCode.NO_PERMISSION)
    """The client did not prove its identity."""
    TOO_LARGE = (5, False, ResponseCode.MESSAGE_ILLEGAL)
    """A message, properties, a block or a frame is above a limit."""
    MALFORMED = (6, False, ResponseCode.MESSAGE_ILLEGAL)
    """Bytes that break the rules; the remark names the record's index. Correct the client that wrote them."""
    UNSUPPORTED_VERSION = (7, False, ResponseCode.VERSION_NOT_SUPPORTED)
    """The broker does not speak this protocol version."""
    UNSUPPORTED_REQUEST = (8, False, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    """The broker does not know the request code."""
    BUSY = (9, True, ResponseCode.SYSTEM_BUSY)
    """Too much to do, or no file descriptor is free. Nothing was done; try again later."""
    QUOTA = (10, True, ResponseCode.FLOW_CONTROL)
    """A quota is used up. Nothing was done; try again later."""
    DISK_FULL = (11, True, ResponseCode.SERVICE_NOT_AVAILABLE)
    """No room for another file of the store. Free space, or shorten the retention."""
    READ_ONLY = (12, False, ResponseCode.SERVICE_NOT_AVAILABLE)
    """The store takes nothing until the broker is restarted, after a failed sync for example, or until it can create
    a log file again."""
    NOT_READY = (13, True, ResponseCode.SERVICE_NOT_AVAILABLE)
    """The broker is starting. Try again later."""
    DRAINING = (14, True, ResponseCode.SERVICE_NOT_AVAILABLE)
    """The broker is stopping. Try again later, or at another broker."""
    OFFSET_OUT_OF_RANGE = (15, False, ResponseCode.PULL_OFFSET_MOVED)
    """The offset is outside the queue; the fields hold the bounds."""
    SUBSCRIPTION_CONFLICT = (16, False, ResponseCode.SUBSCRIPTION_NOT_LATEST)
    """The members of the group do not agree on the subscription. Give all the same topics and filters."""
    FILTER_SYNTAX = (17, False, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
    """The filter expression cannot be parsed; the remark says where and why."""
    DUPLICATE = (18, False, ResponseCode.TOPIC_EXIST_ALREADY)
    """It exists already."""
    TIMEOUT = (19, True, ResponseCode.SYSTEM_BUSY)
    """Timed out before anything was done, or a change at a master that was replaced meanwhile: the next master may not
    have it."""
    # Not SLAVE_NOT_AVAILABLE, which means "stored" to RocketMQ's clients: this refusal stored nothing.
    NO_REPLICA = (20, True, ResponseCode.SERVICE_NOT_AVAILABLE)
    """`replicated` was asked and too few slaves are connected and in sync. Nothing was stored; see the slaves."""
    # The message is stored, only perhaps not on disk; a retry would store it twice.
    FLUSH_TIMEOUT = (21, False, ResponseCode.FLUSH_DISK_TIMEOUT)
    """Stored, but not known to be on disk in time; the fields hold the receipt. Do not send it again."""
    INVALID_ARGUMENT = (22, False, ResponseCode.INVALID_PARAMETER)
    """A field is missing, of a wrong type or out of range."""
    NOT_FOUND = (23, False, ResponseCode.QUERY_NOT_FOUND)
    """No such committed offset or message."""
    INTERNAL = (24, False, ResponseCode.SYSTEM_ERROR)
    """The broker failed; its log has the rest."""
    TRANSACTION_ENDED = (25, False, ResponseCode.SYSTEM_ERROR)
    """The transaction has been ended the other way, or put aside. Undo the local transaction."""
    REQUESTER_GONE = (26, False, ResponseCode.SYSTEM_ERROR)
    """The client that a reply is for is not connected."""
    # RocketMQ's slaves refuse sends and pulls with SYSTEM_BUSY, too.
    NOT_MASTER = (27, True, ResponseCode.SYSTEM_BUSY)
    """The broker is a slave, or a master that has lost its lease or completes a batch first. Nothing was stored;
    another broker is or will be the master."""
    # Stored too: not on as many machines as it should be, or only on this one.
    REPLICA_TIMEOUT = (28, False, ResponseCode.FLUSH_SLAVE_TIMEOUT)
    """Stored, but not known to be on enough machines in time; the fields hold the receipt. Do not send it again."""
    REPLICA_MISSING = (29, False, ResponseCode.SLAVE_NOT_AVAILABLE)
    """Stored on this machine, and too few slaves are connected and in sync; the fields hold the receipt."""
    TLS_REQUIRED = (30, False, ResponseCode.NO_PERMISSION)
    """The port takes encrypted connections only. Connect with TLS."""

    def __init__(self, number: int, retryable: bool, response_code: ResponseCode) -> None:
        self.number = number
        self.retryable = retryable
        self.response_code = response_code


class BrokerError(ReputError):
    """The broker refused a request; `retryable` is that of the reason.

    `error` is the reason, `response_code` the number on the wire (even one without a name here), `remark` the broker's
    text, `ext` the answer's header fields.
    """

    def __init__(
        self,
        error: ErrorCode,
        remark: str | None = None,
        *,
        response_code: int | None = None,
        ext: Mapping[str, Any] | None = None,
    ) -> None:
        code = int(error.response_code) if response_code is None else response_code
        super().__init__(remark or f"{error.name}: the broker responded with code {code} without a remark")
        self.error = error
        self.response_code = code
        self.remark = remark
        self.ext: dict[str, Any] = dict(ext or {})
        self.retryable = error.retryable


class TopicNotFound(BrokerError):
    """The topic does not exist and the broker does not create it."""


class GroupNotFound(BrokerError):
    """The consumer group does not exist."""


class PermissionDenied(BrokerError):
    """The topic, the broker or the access rules do not permit it."""


class MessageRefused(BrokerError):
    """The broker rejected the message or the block; none of it was stored."""


class BrokerBusy(BrokerError):
    """The broker is overloaded or a quota is used up; nothing was stored, retry later."""


class StoreUnavailable(BrokerError):
    """The store accepts no messages: disk full, read-only, starting, stopping or without its replica."""


class NotMaster(BrokerError):
    """The broker is a slave, or a master without its lease; nothing was stored. Another one is, or will be, master."""


class FilterRefused(BrokerError):
    """The broker cannot parse a filter expression; its remark says where and why."""


class OffsetOutOfRange(BrokerError):
    """The offset is outside the queue; `ext` has the bounds and the offset to continue at."""


class RequestNotSupported(BrokerError):
    """The broker does not know the request or the protocol version."""


class NotFound(BrokerError):
    """The requested item, such as a committed offset or a message, does not exist."""


class TransactionEnded(BrokerError):
    """The transaction was ended the other way, or put aside; the first end counts."""


class RequesterGone(BrokerError):
    """The client that sent the request is not connected any more, so the reply was not delivered."""


_CLASS_OF: dict[ErrorCode, type[BrokerError]] = {
    ErrorCode.NO_TOPIC: TopicNotFound,
    ErrorCode.NO_GROUP: GroupNotFound,
    ErrorCode.NO_PERMISSION: PermissionDenied,
    ErrorCode.UNAUTHENTICATED: PermissionDenied,
    ErrorCode.TOO_LARGE: MessageRefused,
    ErrorCode.MALFORMED: MessageRefused,
    ErrorCode.DUPLICATE: MessageRefused,
    ErrorCode.UNSUPPORTED_VERSION: RequestNotSupported,
    ErrorCode.UNSUPPORTED_REQUEST: RequestNotSupported,
    ErrorCode.BUSY: BrokerBusy,
    ErrorCode.QUOTA: BrokerBusy,
    ErrorCode.TIMEOUT: BrokerBusy,
    ErrorCode.DISK_FULL: StoreUnavailable,
    ErrorCode.READ_ONLY: StoreUnavailable,
    ErrorCode.NOT_READY: StoreUnavailable,
    ErrorCode.DRAINING: StoreUnavailable,
    ErrorCode.NO_REPLICA: StoreUnavailable,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.NOT_MASTER: NotMaster,
    ErrorCode.FILTER_SYNTAX: FilterRefused,
    ErrorCode.NOT_FOUND: NotFound,
    ErrorCode.TRANSACTION_ENDED: TransactionEnded,
    ErrorCode.REQUESTER_GONE: RequesterGone,
}

# A code whose remark has no symbol is an Apache broker's.
_ERROR_OF_CODE: dict[int, ErrorCode] = {
    ResponseCode.SYSTEM_ERROR: ErrorCode.INTERNAL,
    ResponseCode.SYSTEM_BUSY: ErrorCode.BUSY,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: ErrorCode.UNSUPPORTED_REQUEST,
    ResponseCode.FLUSH_DISK_TIMEOUT: ErrorCode.FLUSH_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: ErrorCode.REPLICA_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: ErrorCode.REPLICA_MISSING,
    ResponseCode.MESSAGE_ILLEGAL: ErrorCode.MALFORMED,
    ResponseCode.SERVICE_NOT_AVAILABLE: ErrorCode.NOT_READY,
    ResponseCode.VERSION_NOT_SUPPORTED: ErrorCode.UNSUPPORTED_VERSION,
    ResponseCode.NO_PERMISSION: ErrorCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST: ErrorCode.NO_TOPIC,
    ResponseCode.TOPIC_EXIST_ALREADY: ErrorCode.DUPLICATE,
    ResponseCode.PULL_OFFSET_MOVED: ErrorCode.OFFSET_OUT_OF_RANGE,
    ResponseCode.QUERY_NOT_FOUND: ErrorCode.NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: ErrorCode.FILTER_SYNTAX,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: ErrorCode.SUBSCRIPTION_CONFLICT,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: ErrorCode.SUBSCRIPTION_CONFLICT,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: ErrorCode.NO_GROUP,
    ResponseCode.INVALID_PARAMETER: ErrorCode.INVALID_ARGUMENT,
    ResponseCode.CONSUMER_NOT_ONLINE: ErrorCode.NOT_FOUND,
    ResponseCode.CONSUME_MSG_TIMEOUT: ErrorCode.TIMEOUT,
    ResponseCode.FLOW_CONTROL: ErrorCode.QUOTA,
    ResponseCode.GO_AWAY: ErrorCode.DRAINING,
}

_SYMBOL = re.compile(r"([A-Z][A-Z_]*): ")


def refusal_remark(error: ErrorCode, text: str) -> str:
    """Return the remark "SYMBOL: text"; `text` is the fault and, after a semicolon, the remedy."""
    return f"{error.name}: {text}"


def error_from_response(code: int, remark: str | None, ext: Mapping[str, Any]) -> BrokerError:
    """Return the error for an answer with this code, remark and header fields.

    The remark's symbol decides; without one, the answer is Apache's, and the response code decides.
    """
    match = _SYMBOL.match(remark) if remark else None
    error = ErrorCode.__members__.get(match[1]) if match else None
    if error is None:
        error = _ERROR_OF_CODE.get(code, ErrorCode.INTERNAL)
    return _CLASS_OF.get(error, BrokerError)(error, remark, response_code=code, ext=ext)
