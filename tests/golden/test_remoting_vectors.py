"""Whole frames as RocketMQ's own classes write them, reproduced byte for byte in both directions."""

from __future__ import annotations

import pytest

from reput_protocol.commands.pull import PullMessageResult
from reput_protocol.commands.send import SendMessageHeader, SendMessageResult
from reput_protocol.commands.topic import RouteHeader
from reput_protocol.kernel.tables import java_hash
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame, encode_frame_head, encode_header
from reput_protocol.wire.header import Header, HeaderType

ROUTE_JSON = bytes.fromhex(
    "00000087000000837b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f706963546573"
    "74227d2c22666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a372c2273657269616c69"
    "7a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d"
)
ROUTE_BINARY = bytes.fromhex(
    "0000002d0100002900690001df000000070000000000000000000000140005746f70696300000009546f70696354657374"
)
NO_ROUTE_JSON = bytes.fromhex(
    "000000a30000009f7b22636f6465223a31372c22666c6167223a312c226c616e6775616765223a224a415641222c226f7061"
    "717565223a372c2272656d61726b223a224e6f20746f70696320726f75746520696e666f20696e206e616d65207365727665"
    "7220666f722074686520746f7069633a2058222c2273657269616c697a655479706543757272656e74525043223a224a534f"
    "4e222c2276657273696f6e223a3437397d"
)
NO_ROUTE_BINARY = bytes.fromhex(
    "0000004c0100004800110001df0000000700000001000000334e6f20746f70696320726f75746520696e666f20696e206e61"
    "6d652073657276657220666f722074686520746f7069633a205800000000"
)
SEND_JSON = bytes.fromhex(
    "00000160000001577b22636f6465223a3331302c226578744669656c6473223a7b2261223a225047222c2262223a22546f70"
    "696354657374222c2263223a22544257313032222c2264223a2234222c2265223a2231222c2266223a2230222c2267223a22"
    "31373030303030303030303030222c2268223a2230222c2269223a22554e49515f4b45595c75303030314143313130303031"
    "30303030313842344141433230303030303030305c7530303032574149545c7530303031747275655c753030303254414753"
    "5c7530303031546167415c7530303032222c226a223a2230222c226b223a2266616c7365222c226d223a2266616c7365222c"
    "226e223a2262726f6b65722d61227d2c22666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565"
    "223a382c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a343739"
    "7d48656c6c6f"
)
SENT_JSON = bytes.fromhex(
    "0000011a000001167b22636f6465223a302c226578744669656c6473223a7b2271756575654964223a2231222c227472616e"
    "73616374696f6e4964223a2241433131303030313030303031384234414143323030303030303030222c226d73674964223a"
    "223746303030303031303030303241394630303030303030303030303030303030222c2254524143455f4f4e223a22747275"
    "65222c224d53475f524547494f4e223a2244656661756c74526567696f6e222c2271756575654f6666736574223a2230227d"
    "2c22666c6167223a312c226c616e6775616765223a224a415641222c226f7061717565223a382c2273657269616c697a6554"
    "79706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d"
)
PULLED_JSON_HEAD = bytes.fromhex(
    "000001df000000cf7b22636f6465223a302c226578744669656c6473223a7b2273756767657374576869636842726f6b6572"
    "4964223a2230222c226e657874426567696e4f6666736574223a2237222c226d696e4f6666736574223a2230222c226d6178"
    "4f6666736574223a2237227d2c22666c6167223a312c226c616e6775616765223a224a415641222c226f7061717565223a39"
    "2c2272656d61726b223a22464f554e44222c2273657269616c697a655479706543757272656e74525043223a224a534f4e22"
    "2c2276657273696f6e223a3437397d"
)
ROUTE_MSGPACK = bytes.fromhex("0000001c4d000018976903010700c081a5746f706963a9546f70696354657374")
NO_ROUTE_MSGPACK = bytes.fromhex("000000144d000010971103010701a86e6f20726f75746580")

NO_ROUTE_REMARK = "No topic route info in name server for the topic: X"
ROUTE = Header(105, 7, ext={"topic": "TopicTest"}, language=0, version=479)
NO_ROUTE = Header(17, 7, 1, NO_ROUTE_REMARK, language=0, version=479)

SEND = SendMessageHeader(
    "PG",
    "TopicTest",
    1,
    0,
    1700000000000,
    0,
    "UNIQ_KEY\x01AC110001000018B4AAC200000000\x02WAIT\x01true\x02TAGS\x01TagA\x02",
    "TBW102",
    4,
    0,
    False,
    None,
    False,
    "broker-a",
)
SENT = SendMessageResult("7F00000100002A9F0000000000000000", 1, 0, "AC110001000018B4AAC200000000")


@pytest.mark.parametrize(
    ("frame", "header_type", "header", "body"),
    [
        (ROUTE_JSON, HeaderType.JSON, ROUTE, b""),
        (ROUTE_BINARY, HeaderType.BINARY, ROUTE, b""),
        (NO_ROUTE_JSON, HeaderType.JSON, NO_ROUTE, b""),
        (NO_ROUTE_BINARY, HeaderType.BINARY, NO_ROUTE, b""),
        (ROUTE_MSGPACK, HeaderType.MSGPACK, Header(105, 7, ext={"topic": "TopicTest"}, version=1), b""),
        (NO_ROUTE_MSGPACK, HeaderType.MSGPACK, Header(17, 7, 1, "no route", version=1), b""),
        (
            SEND_JSON,
            HeaderType.JSON,
            # The letters come in alphabetical order, as Java's hash map has them.
            Header(310, 8, ext=dict(sorted(SEND.to_ext_v2(HeaderType.JSON).items())), language=0, version=479),
            b"Hello",
        ),
        (
            SENT_JSON,
            HeaderType.JSON,
            Header(
                0,
                8,
                1,
                ext={
                    name: SENT.to_ext(HeaderType.JSON)[name]
                    for name in ("queueId", "transactionId", "msgId", "TRACE_ON", "MSG_REGION", "queueOffset")
                },
                language=0,
                version=479,
            ),
            b"",
        ),
    ],
)
def test_frames_both_ways(frame: bytes, header_type: HeaderType, header: Header, body: bytes) -> None:
    assert encode_frame(header, header_type, body).hex() == frame.hex()
    (received,) = FrameReader().receive_data(frame)
    assert received.header_type == header_type
    assert bytes(received.body) == body
    decoded = decode_header(received.header_type, received.header)
    assert decoded == header
    assert list(decoded.ext) == list(header.ext)
    assert encode_header(decoded, header_type) == bytes(received.header)


def test_the_head_of_a_pull_answer() -> None:
    fields = PullMessageResult(7, 0, 7).to_ext(HeaderType.JSON)
    ext = {name: fields[name] for name in ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")}
    header = Header(0, 9, 1, "FOUND", ext, 0, 479)
    assert encode_frame_head(header, HeaderType.JSON, 268).hex() == PULLED_JSON_HEAD.hex()
    (received,) = FrameReader().receive_data(PULLED_JSON_HEAD + bytes(268))
    assert len(received.body) == 268
    decoded = decode_header(received.header_type, received.header)
    assert decoded == header
    assert PullMessageResult.from_ext(decoded.ext) == PullMessageResult(7, 0, 7)


def test_typed_headers_read_the_vectors() -> None:
    (send,) = FrameReader().receive_data(SEND_JSON)
    assert SendMessageHeader.from_ext_v2(decode_header(0, send.header).ext) == SEND
    (sent,) = FrameReader().receive_data(SENT_JSON)
    assert SendMessageResult.from_ext(decode_header(0, sent.header).ext) == SENT
    for frame in (ROUTE_JSON, ROUTE_BINARY, ROUTE_MSGPACK):
        (route,) = FrameReader().receive_data(frame)
        assert RouteHeader.from_ext(decode_header(route.header_type, route.header).ext) == RouteHeader("TopicTest")


@pytest.mark.parametrize(("tag", "value"), [("TagA", 2598919), ("TagB", 2598920), ("order-created", -392709271)])
def test_tag_hashes(tag: str, value: int) -> None:
    assert java_hash(tag) == value
