"""Signatures in Reput's form: what they cover, and that each counts once."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable
from struct import pack

import pytest

from reput_client.transport.channel import ClientChannel, RequestTemplate, UnsignedHead
from reput_protocol.wire.frames import FrameReader, decode_header, encode_header
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType, Value
from reput_protocol.wire.signature import (
    ACCESS_KEY,
    REPUT_SIGNATURE,
    Credentials,
    RequestSigner,
    SignatureChecker,
    SignatureInvalid,
    request_content,
)

ALICE = Credentials("alice", "secret-of-alice-\u00fc")
CHALLENGE = bytes(range(16))
NOW_MS = 1_700_000_000_000
TOLERANCE_MS = 60_000
EXT: dict[str, Value] = {"topic": "orders", "queueId": 3, "unitMode": False, "absent": None, "i": "k\u00fc"}


def signed(body: bytes = b"body", now_ms: int = NOW_MS) -> Header:
    header = Header(10, 7, ext=dict(EXT), version=479)
    RequestSigner(ALICE, CHALLENGE, lambda: now_ms).sign(header, body)
    return header


def check(checker: SignatureChecker, header: Header, body: bytes = b"body", now_ms: int = NOW_MS) -> None:
    checker.check(ALICE.secret.encode(), header, body, now_ms, TOLERANCE_MS)


@pytest.mark.parametrize("header_type", list(HeaderType))
def test_a_signature_is_valid_in_every_type_of_header(header_type: HeaderType) -> None:
    read = decode_header(header_type, encode_header(signed(), header_type))
    check(SignatureChecker(CHALLENGE), read)


def test_the_bytes_are_those_of_the_protocols_page() -> None:
    header = signed()
    key = hmac.digest(ALICE.secret.encode(), b"13:reput request16:" + CHALLENGE, "sha256")
    fields = "9:AccessKey5:alice1:i3:k\u00fc7:queueId1:35:topic6:orders8:unitMode5:false"
    mark = pack(">QQ", 1, NOW_MS)
    code = hmac.digest(key, f"10 0 479 5 {fields}".encode() + mark + b"body", "sha256")
    assert header.ext[REPUT_SIGNATURE] == b64encode(mark + code).decode()


def change(**changes: object) -> Callable[[Header], None]:
    def apply(header: Header) -> None:
        for name, value in changes.items():
            setattr(header, name, value)

    return apply


def cut_otherwise(header: Header) -> None:
    """The same text in other fields."""
    header.ext = {**header.ext, "topic": "order", "queueId": "s3"}


def rename(header: Header) -> None:
    header.ext = {("b" if name == "topic" else name): value for name, value in header.ext.items()}


@pytest.mark.parametrize(
    "forge",
    [
        change(code=215),
        change(flag=ONEWAY_FLAG),
        change(version=1),
        cut_otherwise,
        rename,
        lambda header: header.ext.update(more=""),
        lambda header: header.ext.update({ACCESS_KEY: "eve"}),
        lambda header: header.ext.update({REPUT_SIGNATURE: "A" * 64}),
        lambda header: header.ext.update({REPUT_SIGNATURE: str(header.ext[REPUT_SIGNATURE])[:-4]}),
        lambda header: header.ext.update({REPUT_SIGNATURE: 7}),
        lambda header: header.ext.update(topic=b"\xff"),
    ],
)
def test_another_request_is_not_signed(forge: Callable[[Header], None]) -> None:
    header = signed()
    forge(header)
    with pytest.raises(SignatureInvalid, match="not that of the user"):
        check(SignatureChecker(CHALLENGE), header)


def test_another_body_secret_or_connection_is_not_signed() -> None:
    with pytest.raises(SignatureInvalid, match="not that of the user"):
        check(SignatureChecker(CHALLENGE), signed(), b"bodies")
    with pytest.raises(SignatureInvalid, match="not that of the user"):
        check(SignatureChecker(bytes(16)), signed())
    with pytest.raises(SignatureInvalid, match="not that of the user"):
        SignatureChecker(CHALLENGE).check(b"secret-of-eve", signed(), b"body", NOW_MS, TOLERANCE_MS)


def test_a_wrong_signature_does_not_use_up_a_number() -> None:
    checker, header = SignatureChecker(CHALLENGE), signed()
    with pytest.raises(SignatureInvalid):
        check(checker, header, b"other")
    check(checker, header)


def test_a_request_counts_once() -> None:
    checker, header = SignatureChecker(CHALLENGE), signed()
    check(checker, header)
    with pytest.raises(SignatureInvalid, match="received before"):
        check(checker, header)


@pytest.mark.parametrize("off_ms", [-TOLERANCE_MS - 1, TOLERANCE_MS + 1])
def test_a_late_request_does_not_count(off_ms: int) -> None:
    with pytest.raises(SignatureInvalid, match=r"signed .* s ago"):
        check(SignatureChecker(CHALLENGE), signed(now_ms=NOW_MS - off_ms))
    check(SignatureChecker(CHALLENGE), signed(now_ms=NOW_MS + TOLERANCE_MS))


def test_numbers_count_in_any_order_once_each_as_far_as_they_are_remembered() -> None:
    signer, checker = RequestSigner(ALICE, CHALLENGE, lambda: NOW_MS), SignatureChecker(CHALLENGE)
    content = request_content(10, 0, 479, {})

    def next_one() -> Header:
        return Header(10, 1, ext={REPUT_SIGNATURE: signer.signature(content, b"")}, version=479)

    headers = [next_one() for _ in range(2000)]
    for index in (5, 3, 4, 1500, 1499, 700, 1999):
        check(checker, headers[index], b"")
    for index in (3, 4, 5, 700, 1499, 1500, 1999, 6, 900):  # the last two are too far behind
        with pytest.raises(SignatureInvalid):
            check(checker, headers[index], b"")
    check(checker, headers[1000], b"")


def test_the_bundled_clients_frames_are_signed_when_they_are_written() -> None:
    channel = ClientChannel()
    channel.signer = RequestSigner(ALICE, CHALLENGE, lambda: NOW_MS)
    template = RequestTemplate(14, {"topic": "t", "queueId": 3, "none": None})
    checker = SignatureChecker(CHALLENGE)
    for opaque, pieces in ((7, (b"one", b"two")), (0x7FFF_FFFF, ())):
        head = channel.head(template, opaque, *pieces)
        assert isinstance(head, UnsignedHead)
        written = head.signed(pieces)
        assert len(written) == len(head)
        (frame,) = FrameReader().receive_data(b"".join((written, *pieces)))
        header = decode_header(frame.header_type, frame.header)
        assert (header.code, header.opaque, header.ext[ACCESS_KEY]) == (14, opaque, "alice")
        check(checker, header, bytes(frame.body))
