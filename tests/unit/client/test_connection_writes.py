"""How frames leave: one alone, several at once, and in any pieces that the system accepts."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from reput_client.blocking.runtime import BlockingRuntime
from reput_client.transport.address import Address
from reput_client.transport.channel import RequestTemplate
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.options import ClientOptions
from reput_client.transport.pump import Pump
from reput_protocol.codes import RequestCode
from reput_protocol.wire.channel import Call, Waiter
from reput_protocol.wire.frames import Frame, FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import RESPONSE_FLAG, Header, HeaderType

TEMPLATE = RequestTemplate(RequestCode.PUT_MESSAGE, {"topic": "t"})
SMALL, MIDDLE, LARGE = b"s" * 1000, bytes(range(256)) * 900, bytes(range(256)) * 3000


class Wire:
    """An open connection whose system takes little at a time, and its other end."""

    def __init__(self) -> None:
        self.runtime = BlockingRuntime()
        with socket.create_server(("127.0.0.1", 0)) as server:
            host, port = server.getsockname()
            self.connection = BrokerConnection(
                self.runtime,
                Pump(self.runtime),
                Address(host, port),
                ClientOptions("unused"),
                lambda _request: None,
                lambda _connection: None,
            )
            self.runtime.run(self.connection.open(self.runtime.now() + 10, patient=False))
            self.far_end, _ = server.accept()
        self._be_known()
        self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        self.reader = FrameReader()
        self.frames: list[Frame] = []

    def _be_known(self) -> None:
        """Answer a first request as Reput's broker, so that the connection knows its peer."""
        call = self.connection.start_template(RequestTemplate(RequestCode.GET_BROKER_CLUSTER_INFO, {}), Waiter())
        self.connection.flush_now()
        self.far_end.recv(1 << 16)
        self.far_end.sendall(encode_frame(Header(0, call.opaque, RESPONSE_FLAG, version=1), HeaderType.JSON))
        while not call.done:
            self.connection.read_ready()

    def start(self, body: bytes) -> Call:
        return self.connection.start_template(TEMPLATE, Waiter(), body)

    def arrive(self, count: int) -> None:
        """Write and read alternately until `count` frames have arrived."""
        while len(self.frames) < count:
            poller = select.poll()  # select() is limited to descriptors up to 1,023
            poller.register(self.far_end, select.POLLIN)
            if self.connection.has_unwritten:
                poller.register(self.connection.sock, select.POLLOUT)
            ready = {descriptor for descriptor, _ in poller.poll(30_000)}
            assert ready, "nothing moves any more"
            if self.connection.sock.fileno() in ready:
                self.connection.flush_now()
            if self.far_end.fileno() in ready:
                self.frames += self.reader.receive_data(self.far_end.recv(65536))

    def close(self) -> None:
        self.connection.close()
        self.runtime.close()
        self.far_end.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


def test_a_small_frame_leaves_at_once(wire: Wire) -> None:
    call = wire.start(SMALL)
    assert not call.sent
    assert wire.connection.flush_now()
    assert call.sent
    assert not wire.connection.has_unwritten
    wire.arrive(1)
    assert bytes(wire.frames[0].body) == SMALL


@pytest.mark.parametrize(
    "bodies", [[MIDDLE], [LARGE], [MIDDLE, SMALL], [SMALL, LARGE, b"", MIDDLE]], ids=lambda b: str(len(b))
)
def test_frames_that_leave_in_pieces_arrive_whole_and_in_order(wire: Wire, bodies: list[bytes]) -> None:
    calls = [wire.start(body) for body in bodies]
    assert not wire.connection.flush_now(), "the system cannot take it all"
    assert not calls[-1].sent
    late = wire.start(SMALL)
    wire.arrive(len(bodies) + 1)
    assert [bytes(frame.body) for frame in wire.frames] == [*bodies, SMALL]
    opaques = [decode_header(frame.header_type, frame.header).opaque for frame in wire.frames]
    assert opaques == [call.opaque for call in (*calls, late)]
    assert all(call.sent for call in (*calls, late))


def test_a_partly_sent_frame_cannot_be_cancelled_and_the_next_one_can(wire: Wire) -> None:
    begun = wire.start(MIDDLE)
    assert not wire.connection.flush_now()
    waiting = wire.start(SMALL)
    assert wire.connection.abandon(waiting)
    assert not wire.connection.abandon(begun)
    wire.start(b"last")
    wire.arrive(2)
    assert [bytes(frame.body) for frame in wire.frames] == [MIDDLE, b"last"]


def test_a_frame_written_to_a_connection_that_the_system_has_ended_fails_its_call(wire: Wire) -> None:
    call = wire.start(SMALL)
    wire.connection.sock.shutdown(socket.SHUT_WR)
    assert wire.connection.flush_now(), "nothing is left to write"
    assert not wire.connection.is_open
    assert call.done
    assert call.error is not None
    assert not call.sent


def test_a_lost_connection_reports_for_each_frame_whether_it_left(wire: Wire) -> None:
    gone = [wire.start(b"x") for _ in range(3)]
    assert wire.connection.flush_now()
    stuck = [wire.start(b"y" * 16_000) for _ in range(60)]
    assert not wire.connection.flush_now()
    wire.connection.close()
    assert all(call.done and call.error is not None for call in gone + stuck)
    assert all(call.sent for call in gone)
    assert not stuck[-1].sent
