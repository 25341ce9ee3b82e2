"""Puts that are stored and wait for the disk: what is said to their client when the sync is through, or is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from reput_broker.request import Client, Refusal, Request, Response
from reput_broker.store.results import PutResult
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ErrorCode, refusal_remark


class StoredBefore(PutResult):
    """The outcome of a put whose messages were stored already: that of the first time."""

    queue_id: int = -1


class PendingPut(Protocol):
    """Something stored whose answer waits for a sync. Answers are only queued; the client is flushed after."""

    @property
    def client(self) -> Client:
        """Who waits."""

    @property
    def received_at(self) -> float:
        """When the read that brought it returned, in seconds of the monotonic clock."""

    @property
    def requests(self) -> int:
        """How many requests it answers whose time is counted."""

    @property
    def messages(self) -> int:
        """How many messages it stored."""

    def acknowledge(self) -> None:
        """Answer that the level that was asked for is reached."""

    def admit(self, reason: str) -> None:
        """Answer that it is stored, but not known to be on disk, and why."""

    def refuse(self, reason: str) -> None:
        """Answer that it is not stored after all, and why: it got no further than the broker's own memory."""


@dataclass(slots=True)
class PendingRequest:
    """One request and the answer that it gets if all goes well."""

    request: Request
    response: Response
    messages: int
    requests: int = 1

    @property
    def client(self) -> Client:
        """See `PendingPut`."""
        return self.request.client

    @property
    def received_at(self) -> float:
        """See `PendingPut`."""
        return self.request.received_at

    def acknowledge(self) -> None:
        """See `PendingPut`."""
        self.client.answer(self.request, self.response)

    def admit(self, reason: str) -> None:
        """See `PendingPut`."""
        self.client.answer(self.request, _not_flushed(self.response, reason))

    def refuse(self, reason: str) -> None:
        """See `PendingPut`."""
        self.client.answer(self.request, _not_stored(reason))


def flush_clients(pending: Iterable[PendingPut]) -> None:
    """Write what was queued for the clients of `pending`, with one write for each."""
    for client in {id(put.client): put.client for put in pending}.values():
        client.flush()


def _not_flushed(response: Response, reason: str) -> Response:
    """Return the answer that carries the receipt and says that its ack level was not reached."""
    error = ErrorCode.FLUSH_TIMEOUT
    text = f"stored, but not known to be on disk: {reason}; do not send again unless a duplicate is harmless"
    ext = {**response.ext, "ack": AckLevel.PAGE_CACHE.value} if "ack" in response.ext else response.ext
    return Response(int(error.response_code), ext, remark=refusal_remark(error, text))


def _not_stored(reason: str) -> Response:
    """Return the refusal of a put whose bytes never reached their file."""
    return Refusal(ErrorCode.READ_ONLY, f"not stored: {reason}; see the broker's log").response()
