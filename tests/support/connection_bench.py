"""Connections of a broker to peers that are played by the test, with its own handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
import trio.testing

from reput_broker.access.control import Access
from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import LimitsConfig
from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import Handler, Put, Refusal, Request, Response
from reput_broker.server.connection import Addresses, Connection, Shared
from reput_broker.server.connection_limits import ConnectionRefusals, Strangers
from reput_broker.server.handling import RequestHandling
from reput_broker.server.memory import HeldBytes
from reput_broker.store.base.results import PutResult, PutStatus
from reput_protocol.codes import AckLevel, RequestCode
from reput_protocol.commands.send import PutMessageHeader
from reput_protocol.errors import ErrorCode
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import Header, HeaderType

# Any codes that are counted by name; what they mean elsewhere is of no interest here.
ECHO, LATER, SLOW = RequestCode.GET_MAX_OFFSET, RequestCode.PULL_MESSAGE, RequestCode.UPDATE_AND_CREATE_TOPIC
REFUSED, BROKEN, BIG = (
    RequestCode.GET_MIN_OFFSET,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
)
SLOW_AND_LATER = RequestCode.SEND_MESSAGE_V2


@dataclass
class Peer:
    """The far end: what it sends, what it has got, and how much it takes without waiting."""

    room: int = 1 << 30
    got: bytearray = field(default_factory=bytearray)
    sends: int = 0
    closed: bool = False

    def __post_init__(self) -> None:
        self._to_broker, self._from_peer = trio.open_memory_channel[bytes](100)
        self._room = trio.Event()
        self._at_hand: bytes | None = None

    # the transport

    async def arrived(self) -> None:
        if self._at_hand is None:
            self._at_hand = await self.receive()

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        if self.closed:
            raise trio.ClosedResourceError
        at_hand, self._at_hand = self._at_hand, None
        if at_hand is not None:
            return at_hand
        try:
            return await self._from_peer.receive()
        except trio.EndOfChannel:
            raise trio.ClosedResourceError from None

    def try_send(self, buffers: Sequence[bytes | memoryview]) -> int:
        self.sends += 1
        taken = b"".join(buffers)[: self.room]
        self.room -= len(taken)
        self.got += taken
        return len(taken)

    async def send(self, data: memoryview) -> int:
        while not self.room:
            await self._room.wait()
        taken = data[: self.room]
        self.room -= len(taken)
        self.got += taken
        return len(taken)

    def end_sending(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
        self._to_broker.close()

    # the test

    def says(self, *frames: bytes) -> None:
        self._to_broker.send_nowait(b"".join(frames))

    def ends(self) -> None:
        self._to_broker.send_nowait(b"")

    def reads(self, size: int = 1 << 30) -> None:
        self.room += size
        self._room.set()
        self._room = trio.Event()

    @property
    def answers(self) -> list[tuple[Header, bytes]]:
        return [
            (decode_header(frame.header_type, frame.header), bytes(frame.body))
            for frame in FrameReader().receive_data(bytes(self.got))
        ]

    @property
    def answered(self) -> list[tuple[int, int]]:
        return [(header.opaque, header.code) for header, _ in self.answers]


class Bench:
    """A connection to a peer, with the test's handlers; with `beside` it shares another's limits, memory and turns."""

    def __init__(
        self,
        peer: Peer,
        nursery: trio.Nursery,
        beside: Bench | None = None,
        access: Access | None = None,
        **limits: Any,
    ) -> None:
        self.peer = peer
        self.counters: Counters = beside.counters if beside else Counters()
        self.traffic = self.counters.listeners["main"]
        self.limits: LimitsConfig = beside.limits if beside else LimitsConfig(**limits)
        self.memory: HeldBytes = beside.memory if beside else HeldBytes(self.counters, self.limits)
        self.next_turn: trio.Lock = beside.next_turn if beside else trio.Lock()
        self.refusals: ConnectionRefusals = beside.refusals if beside else ConnectionRefusals()
        self.strangers: Strangers[Connection] | None = beside.strangers if beside else None
        if access is not None and self.strangers is None:
            config = BrokerConfig(limits=limits, access={"enabled": True})
            self.strangers = Strangers(config, self.counters)
        self.held: list[Request] = []
        self.appended: list[list[Put]] = []
        self.after_puts: list[int] = []
        self.waits_to_append: trio.Event | None = None
        self.proceed = trio.Event()
        self.ended: list[Connection] = []
        handlers: dict[int, Handler] = {
            ECHO: lambda request: Response(0, {"n": str(request.header.opaque)}),
            LATER: self._later,
            SLOW: self._slow,
            SLOW_AND_LATER: self._slow_and_later,
            REFUSED: self._refused,
            BROKEN: self._broken,
            BIG: lambda _: Response(0, body=bytes(100_000)),
            RequestCode.PUT_MESSAGE: self._put,
        }
        self.traffic.connection_opened()
        self.connection = Connection(
            peer,
            Addresses("10.0.0.1:5", bytes(8), "10.0.0.2:10911"),
            Shared(
                RequestHandling(
                    handlers,
                    self._append,
                    lambda _: self.after_puts.append(len(self.peer.got)),
                    limits=self.limits,
                    access=access,
                ),
                self.limits,
                self.counters,
                self.memory,
                self.next_turn,
                self.refusals,
                self.strangers,
            ),
            self.traffic,
            nursery,
            self.ended.append,
        )

    def _later(self, request: Request) -> None:
        self.held.append(request)

    async def _slow(self, request: Request) -> Response:
        await self.proceed.wait()
        return Response(0)

    async def _slow_and_later(self, request: Request) -> None:
        await self.proceed.wait()
        self.held.append(request)

    def _refused(self, request: Request) -> Response:
        raise Refusal(ErrorCode.NO_TOPIC, "no such thing")

    def _broken(self, request: Request) -> Response:
        raise ZeroDivisionError

    def _put(self, request: Request) -> Put:
        header = PutMessageHeader.from_ext(request.ext)
        return Put(request, 1, lambda: PutResult(PutStatus.PUT_OK), lambda _: Response(), "t", header.ack)

    def _append(self, puts: Sequence[Put]) -> Awaitable[None] | None:
        if self.waits_to_append is not None:
            return self._append_later(puts, self.waits_to_append)
        self.appended.append([*puts])
        for put in puts:
            put.outcome = Response() if put.ack is AckLevel.PAGE_CACHE else None
        return None

    async def _append_later(self, puts: Sequence[Put], proceed: trio.Event) -> None:
        await proceed.wait()
        self.waits_to_append = None
        self._append(puts)

    def traffic_of(self, code: int) -> Any:
        return self.counters.requests[HeaderType.JSON, code]

    def answers(self, code: int, kind: int = HeaderType.JSON) -> dict[int, int]:
        """Return how many answers a request code got, by response code."""
        traffic = self.counters.requests[kind, code]
        return {answer: times.count for answer, times in traffic.answers.items()}


def ask(code: int, opaque: int, flag: int = 0, body: bytes = b"", kind: int = HeaderType.JSON) -> bytes:
    return encode_frame(Header(code, opaque, flag), kind, body)


def put(opaque: int, ack: AckLevel = AckLevel.PAGE_CACHE) -> bytes:
    ext = PutMessageHeader("t", 0, 1, ack).to_ext(HeaderType.MSGPACK)
    return encode_frame(Header(RequestCode.PUT_MESSAGE, 1 << 20 | opaque, ext=ext), HeaderType.MSGPACK, b"x")


@asynccontextmanager
async def connected(peer: Peer | None = None, **limits: Any) -> AsyncIterator[Bench]:
    async with trio.open_nursery() as nursery:
        bench = Bench(peer or Peer(), nursery, **limits)
        nursery.start_soon(bench.connection.run)
        yield bench
        nursery.cancel_scope.cancel()


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()
