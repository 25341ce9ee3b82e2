"""Puts that are stored and wait for the disk: what is said to their client when the sync is through, or is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from reput_broker.request import Client, PutRun, Refusal, Request, Response
from reput_broker.store.results import RunResult
from reput_protocol.codes import AckLevel
from reput_protocol.commands import PutMessageResult
from reput_protocol.errors import ErrorCode, refusal_remark
from reput_protocol.frames import encode_frame
from reput_protocol.header import HeaderType


class PendingPut(Protocol):
    """Something stored whose answer waits for a sync. Both ways to answer only queue; the client is flushed after."""

    @property
    def client(self) -> Client:
        """Who waits."""

    @property
    def received_at(self) -> float:
        """When the read that brought it returned, in seconds of the monotonic clock."""

    @property
    def requests(self) -> int:
        """How many requests it answers."""

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

    @property
    def client(self) -> Client:
        """See `PendingPut`."""
        return self.request.client

    @property
    def received_at(self) -> float:
        """See `PendingPut`."""
        return self.request.received_at

    @property
    def requests(self) -> int:
        """See `PendingPut`."""
        return 1

    def acknowledge(self) -> None:
        """See `PendingPut`."""
        self.client.answer(self.request, self.response)

    def admit(self, reason: str) -> None:
        """See `PendingPut`."""
        self.client.answer(self.request, _not_flushed(self.response, reason))

    def refuse(self, reason: str) -> None:
        """See `PendingPut`."""
        self.client.answer(self.request, _not_stored(reason))


@dataclass(slots=True)
class PendingRun:
    """A run of native puts: the frames that answer it if all goes well, and the facts if it does not."""

    run: PutRun
    frames: bytes
    stored: RunResult
    store_host: str
    messages: int

    @property
    def client(self) -> Client:
        """See `PendingPut`."""
        return self.run.client

    @property
    def received_at(self) -> float:
        """See `PendingPut`."""
        return self.run.received_at

    @property
    def requests(self) -> int:
        """See `PendingPut`."""
        return self.run.count

    def acknowledge(self) -> None:
        """See `PendingPut`."""
        self.client.answer_run(self.run, self.frames)

    def admit(self, reason: str) -> None:
        """See `PendingPut`."""
        run, stored = self.run, self.stored
        places = zip(run.opaques, run.headers, stored.queue_offsets, stored.physical_offsets, strict=True)
        frames, code = [], 0
        for opaque, header, queue_offset, physical_offset in places:
            result = PutMessageResult(
                header.queue_id,
                queue_offset,
                physical_offset,
                stored.store_timestamp_ms,
                self.store_host,
                header.ack,
            )
            answer = _not_flushed(Response(0, result.to_ext(HeaderType.MSGPACK)), reason)
            code = answer.code
            frames.append(encode_frame(answer.header(opaque, HeaderType.MSGPACK), HeaderType.MSGPACK))
        self.client.answer_run(run, b"".join(frames), code)

    def refuse(self, reason: str) -> None:
        """See `PendingPut`."""
        answer = _not_stored(reason)
        frames = [
            encode_frame(answer.header(opaque, HeaderType.MSGPACK), HeaderType.MSGPACK)
            for opaque in self.run.opaques
        ]
        self.client.answer_run(self.run, b"".join(frames), answer.code)


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
