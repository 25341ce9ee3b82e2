"""Signatures as RocketMQ's AclClientRPCHook 5.3.3 makes them, of the bundled client's requests too."""

from __future__ import annotations

import pytest

from fuzz.captured import USER, captured
from reput_client.transport.channel import ClientChannel, RequestTemplate
from reput_protocol.wire.channel import Peer
from reput_protocol.wire.frames import FrameReader, decode_header, encode_header
from reput_protocol.wire.header import Header, HeaderType, Value
from reput_protocol.wire.signature import (
    ACCESS_KEY,
    SIGNATURE,
    Credentials,
    check_secret,
    signature_of,
    signed_by,
    signed_content,
)

ROCKETMQ2 = Credentials("rocketmq2", "12345678")
ALICE = Credentials("alice", "s3cret-\u00fc-Key", "token/1")
SEND: dict[str, Value] = {
    "m": "false", "a": "pg", "b": "orders", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1700000000000",
    "h": "0", "i": "TAGS\x01a\x02KEYS\x01k\u00fc\x02", "j": "0", "k": "false",
}  # fmt: skip
QUERY: dict[str, Value] = {
    "topic": "orders",
    "key": "k1",
    "maxNum": "32",
    "beginTimestamp": "0",
    "endTimestamp": "9",
    "_UNIQUE_KEY_QUERY": "true",
}


@pytest.mark.parametrize(
    ("user", "ext", "body", "signature"),
    [
        (ROCKETMQ2, {"topic": "TopicTest"}, b"", "GeeGoP9mRvDhoVp4PD5omX0prgE="),
        (ALICE, SEND, "hello \u00fc".encode(), "1lJHKSyF2SIj47je/871ZtiTeCk="),
        (ROCKETMQ2, {}, b'{"clientID":"x"}', "NOno8kLVLxP2c9xNmwb0ASGmImU="),
        (ROCKETMQ2, QUERY, b"", "HKvFVsGjh6avWTiDS1yz5p9e1ws="),
    ],
)
@pytest.mark.parametrize("header_type", list(HeaderType))
def test_a_signature_is_javas_whatever_the_header_type(
    user: Credentials, ext: dict[str, Value], body: bytes, signature: str, header_type: HeaderType
) -> None:
    signed = signed_by(user, ext, body, version=479)
    assert signed[SIGNATURE] == signature
    read = decode_header(header_type, encode_header(Header(10, 1, ext=signed), header_type))
    assert signature_of(user.secret.encode(), signed_content(read.ext, 479), body) == signature


def test_typed_values_are_signed_as_text() -> None:
    typed: dict[str, Value] = {"queueId": 2, "unitMode": False, "absent": None, "topic": "t"}
    assert signed_content(typed) == signed_content({"queueId": "2", "unitMode": "false", "topic": "t"})


@pytest.mark.parametrize(("version", "is_signed"), [(399, False), (400, True), (1, True)])
def test_old_clients_leave_one_field_out(version: int, is_signed: bool) -> None:
    assert (b"true" in signed_content(QUERY, version)) is is_signed


@pytest.mark.parametrize("peer", list(Peer))
def test_a_server_that_knows_no_other_form_gets_rocketmqs(peer: Peer) -> None:
    channel = ClientChannel(peer=peer)
    channel.rocketmq_user = ALICE
    template = RequestTemplate(14, {"topic": "t", "queueId": 3, "none": None})
    for opaque, pieces in ((7, (b"one", b"two")), (0x7FFF_FFFF, ())):
        head = channel.head(template, opaque, *pieces)
        assert isinstance(head, bytes)
        (frame,) = FrameReader().receive_data(b"".join((head, *pieces)))
        header = decode_header(frame.header_type, frame.header)
        assert (header.code, header.opaque, header.ext[ACCESS_KEY]) == (14, opaque, "alice")
        content = signed_content(header.ext, header.version)
        assert header.ext[SIGNATURE] == signature_of(ALICE.secret.encode(), content, frame.body)


def test_recorded_requests_of_all_clients_bear_the_signature_of_their_user() -> None:
    signed = [frame for frame in captured() if frame.header.ext.get(ACCESS_KEY) == USER.user]
    java = {"java-4", "java-4-binary", "java-5", "java-5-binary", "mqadmin", "proxy"}
    assert {frame.client for frame in signed} == {*java, "cpp", "node", "reput"}
    for frame in signed:
        content = signed_content(frame.header.ext, frame.header.version)
        assert frame.header.ext[SIGNATURE] == signature_of(USER.secret.encode(), content, frame.body), frame


def test_a_secret_is_in_no_text() -> None:
    assert "s3cret" not in f"{ALICE!r} {ALICE}"
    with pytest.raises(ValueError, match="8 to 256") as refused:
        check_secret("hidden!")
    assert "hidden!" not in str(refused.value)
