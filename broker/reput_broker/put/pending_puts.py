"""Puts that are stored and wait for a position of the log, and the answers that they get."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from reput_broker.put.fence import Fence
from reput_broker.remoting.request import Client, Refusal, Request, Response
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ErrorCode, refusal_remark


class PendingPut(Protocol):
    """Something stored whose answer waits. Answers are only queued; the client is flushed afterwards."""

    __slots__ = ()

    requests: int
    """How many requests it answers whose time is counted."""
    messages: int
    """How many messages it stored."""

    @property
    def client(self) -> Client:
        """The client to answer."""

    @property
    def received_at(self) -> float:
        """When the read that brought it returned, in seconds of the monotonic clock."""

    def acknowledge(self) -> None:
        """Answer that the requested level is reached."""

    def admit(self, reason: str, error: ErrorCode, *, is_flushed: bool = False) -> None:
        """Answer that it is stored, and synced or not, and the level is not known to be reached, with the reason."""

    def refuse(self, reason: str) -> None:
        """Answer that it is not stored, with the reason: it was only in the broker's memory."""


@dataclass(slots=True)
class PendingRequest(PendingPut):
    """One request and its answer if the level is reached, unless the fence is passed then."""

    request: Request
    response: Response
    messages: int
    fence: Fence
    requests: int = 1

    @property
    @override
    def client(self) -> Client:
        return self.request.client

    @property
    @override
    def received_at(self) -> float:
        return self.request.received_at

    @override
    def acknowledge(self) -> None:
        reason = self.fence.expiry()
        if reason is not None:
            self.admit(reason, ErrorCode.REPLICA_TIMEOUT)
            return
        self.client.answer(self.request, self.response)

    @override
    def admit(self, reason: str, error: ErrorCode, *, is_flushed: bool = False) -> None:
        self.client.answer(self.request, not_reached(self.response, reason, error, is_flushed=is_flushed))

    @override
    def refuse(self, reason: str) -> None:
        self.client.answer(self.request, _not_stored(reason))


def flush_clients(pending: Iterable[PendingPut]) -> None:
    """Write the queued answers, with one write for each client."""
    for client in {id(put.client): put.client for put in pending}.values():
        client.flush()


def not_reached(response: Response, reason: str, error: ErrorCode, *, is_flushed: bool = False) -> Response:
    """Return the answer to a put that is stored here, and not known to have reached its level."""
    reached = AckLevel.FLUSHED if is_flushed else AckLevel.PAGE_CACHE
    where = "on disk" if error is ErrorCode.FLUSH_TIMEOUT else "replicated"
    text = (
        f"stored, but not confirmed to be {where}: {reason}; do not send again unless a duplicate is harmless"
    )
    ext = {**response.ext, "ack": reached.value} if "ack" in response.ext else response.ext
    return Response(int(error.response_code), ext, remark=refusal_remark(error, text))


def _not_stored(reason: str) -> Response:
    return Refusal(ErrorCode.READ_ONLY, f"not stored: {reason}; see the broker's log").response()
