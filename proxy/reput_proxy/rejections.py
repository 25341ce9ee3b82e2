"""Errors as clients see them: a status with a code, by which they act, and a text for people; checks of names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from reput_client import errors
from reput_client.transport.session import Session
from reput_protocol.codes import ResponseCode
from reput_protocol.errors import BrokerError, ErrorCode, InvalidMessage, InvalidName, ReputError
from reput_protocol.names import check_client_group, check_topic
from reput_proxy import log
from reput_proxy import messaging_pb2 as pb

Code = pb.Code

T = TypeVar("T")

_TEXT_CHARACTERS_MAX: Final = 1000
ID_BYTES_MAX: Final = 1024
"""Of ids and handles, those of RocketMQ and of the proxy."""

_CODES: Final[tuple[tuple[type[Exception], pb.Code], ...]] = (
    (errors.TopicNotFound, Code.TOPIC_NOT_FOUND),
    (errors.GroupNotFound, Code.CONSUMER_GROUP_NOT_FOUND),
    (errors.NoQueue, Code.FORBIDDEN),
    (errors.AmbiguousQueue, Code.BAD_REQUEST),
    (errors.InvalidHandle, Code.INVALID_RECEIPT_HANDLE),
    (errors.FilterSyntaxError, Code.ILLEGAL_FILTER_EXPRESSION),
    (errors.FilterRefused, Code.ILLEGAL_FILTER_EXPRESSION),
    (errors.OffsetOutOfRange, Code.ILLEGAL_OFFSET),
    (errors.TransactionEnded, Code.INVALID_TRANSACTION_ID),
    (errors.RequestNotSupported, Code.NOT_IMPLEMENTED),
    (errors.NotFound, Code.NOT_FOUND),
    (errors.MessageRefused, Code.MESSAGE_CORRUPTED),
    (errors.PermissionDenied, Code.FORBIDDEN),
    (errors.BrokerBusy, Code.TOO_MANY_REQUESTS),
    (errors.SendOutcomeUnknown, Code.PROXY_TIMEOUT),
    (errors.RequestTimeout, Code.PROXY_TIMEOUT),
    (errors.InvalidMessage, Code.BAD_REQUEST),
)
"""The first that fits counts. A broker that is away is INTERNAL_SERVER_ERROR, after which clients try again."""
_CODES_OF_REASONS: Final = {
    ErrorCode.UNAUTHENTICATED: Code.UNAUTHORIZED,
    ErrorCode.TOO_LARGE: Code.MESSAGE_BODY_TOO_LARGE,
    ErrorCode.TIMEOUT: Code.PROXY_TIMEOUT,
    ErrorCode.NO_REPLICA: Code.HA_NOT_AVAILABLE,
    ErrorCode.INVALID_ARGUMENT: Code.BAD_REQUEST,
}
_CODES_OF_LEVELS: Final = {
    ResponseCode.FLUSH_DISK_TIMEOUT.value: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT.value: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE.value: Code.HA_NOT_AVAILABLE,
}


class Rejected(Exception):
    """The proxy rejects a request; the client receives `code` and the text."""

    def __init__(self, code: pb.Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class Undecodable(str):
    """In place of a request whose bytes are not one: why."""

    __slots__ = ()


def decoded(request: T) -> T:
    """Return a request; raises `Rejected` if its bytes were not one."""
    if isinstance(request, Undecodable):
        raise Rejected(Code.BAD_REQUEST, f"the request cannot be decoded: {request}")
    return request


def check_name(check: Any, name: str, code: pb.Code) -> None:
    """Call `check` with a name; what it rejects is rejected with `code`."""
    try:
        check(name)
    except (InvalidName, InvalidMessage) as error:
        raise Rejected(code, str(error)) from None


def check_group_and_topic(group: str, topic: str) -> None:
    """Check names; raises `Rejected`."""
    check_name(check_topic, topic, Code.ILLEGAL_TOPIC)
    check_name(check_client_group, group, Code.ILLEGAL_CONSUMER_GROUP)


def check_size(what: str, text: str, bytes_max: int, code: pb.Code) -> None:
    """Check a text that goes to a broker in the header of a request, which is limited; raises `Rejected`."""
    if len(text.encode()) > bytes_max:
        raise Rejected(code, f"{what} has more than {bytes_max} bytes: {text[:80]!r}")


async def check_broker(
    session: Session, topic: str, name: str, code: pb.Code, deadline: float, *, may_be_away: bool = False
) -> None:
    """Check that a topic is at the broker that a client names, and learn the broker's address.

    Args:
        may_be_away: whether the broker has been there lately, although this proxy may not have heard of it.

    Raises:
        Rejected: with `code`, which clients take as final: there is no such broker.
        BrokerNotFound: the broker is away.
    """
    if name in (await session.route(topic, deadline)).brokers:
        return
    # A name server leaves out a broker that is away, and the route from memory may be of that time.
    if name in (await session.fetch_route(topic, deadline)).brokers:
        return
    if may_be_away or name in session.brokers.slaves:
        raise errors.BrokerNotFound(name, topic)
    raise Rejected(code, f"topic {topic!r} is not at broker {name[:80]!r}")


def code_name(code: int) -> str:
    """Return the name of a status' code; its number if it has none."""
    return pb.Code.Name(code) if code in pb.Code.values() else str(code)


def ok() -> pb.Status:
    """Return the status of success."""
    return pb.Status(code=Code.OK, message="OK")


def status(code: pb.Code, text: str = "") -> pb.Status:
    """Return a status, whose text is the code's name unless one is given."""
    return pb.Status(code=code, message=text[:_TEXT_CHARACTERS_MAX] or Code.Name(code))


def status_of(error: Exception) -> pb.Status:
    """Return the status for an error. An unexpected one is logged, and the client does not get its text."""
    if isinstance(error, Rejected):
        return status(error.code, str(error))
    if isinstance(error, errors.AckNotReached):
        return status(_CODES_OF_LEVELS.get(error.response_code, Code.INTERNAL_SERVER_ERROR), str(error))
    if isinstance(error, BrokerError) and error.error in _CODES_OF_REASONS:
        return status(_CODES_OF_REASONS[error.error], str(error))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return status(code, str(error))
    if isinstance(error, ReputError):
        return status(Code.INTERNAL_SERVER_ERROR, str(error))
    log.error("request_failed", error)
    return status(Code.INTERNAL_SERVER_ERROR, f"the proxy failed ({type(error).__name__}); its log has the rest")


def status_of_all(statuses: Iterable[pb.Status]) -> pb.Status:
    """Return the status of a request with several results: theirs, if they have the same code."""
    found = {each.code: each for each in statuses}
    if len(found) == 1:
        (only,) = found.values()
        return only
    return status(Code.MULTIPLE_RESULTS)
