"""Put frames at full speed say what the ordinary way says, and leave everything unusual to it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.codes import AckLevel, LanguageCode, RequestCode
from reput_protocol.commands import PutMessageHeader, PutMessageResult
from reput_protocol.errors import HeaderFieldError, HeaderMalformed
from reput_protocol.frames import FrameReader
from reput_protocol.header import RESPONSE_FLAG, Header, HeaderType, decode_header, encode_header
from reput_protocol.put_frames import PutAnswerCache, PutHeaderCache, encode_put_answer, opaque_of

MSGPACK = HeaderType.MSGPACK

opaques = st.integers(0, 2**31 - 1) | st.sampled_from([0, 1, 127, 128, 65_535, 65_536])
topics = st.sampled_from(["t", "orders", "größe", "%RETRY%g"]) | st.text(min_size=1, max_size=20)
acks = st.sampled_from(AckLevel)
big = st.integers(0, 2**63 - 1)
hosts = st.sampled_from(["127.0.0.1:10911", "[2001:db8::1]:10911", "0.0.0.0:0"])

put_headers = st.builds(
    Header,
    code=st.just(int(RequestCode.PUT_MESSAGE)),
    opaque=opaques,
    ext=st.builds(
        lambda topic, queue_id, count, ack: {
            "topic": topic, "queueId": queue_id, "count": count, "ack": ack
        },
        topics, st.integers(0, 2**31 - 1), st.integers(1, 1000), acks,
    ),
    language=st.sampled_from([int(LanguageCode.PYTHON), int(LanguageCode.JAVA)]),
    version=st.sampled_from([0, 1, 300]),
)  # fmt: skip
odd_headers = st.builds(
    Header,
    code=st.sampled_from([int(RequestCode.PUT_MESSAGE), int(RequestCode.PULL_MESSAGE), 0]),
    opaque=opaques,
    flag=st.sampled_from([0, 1, 2, 3]),
    remark=st.none() | st.text(max_size=5),
    ext=st.dictionaries(
        st.sampled_from(["topic", "queueId", "count", "ack", "storeHost", "x"]),
        st.integers(-5, 2**40) | st.sampled_from(["t", "flushed", "x"]),
        max_size=5,
    ),
)
results = st.builds(PutMessageResult, st.integers(0, 2**31 - 1), big, big, big, hosts, acks)


@given(st.lists(put_headers, min_size=1, max_size=8))
def test_a_known_header_means_what_decoding_it_means(headers: list[Header]) -> None:
    cache = PutHeaderCache()
    for header in headers * 2:
        data = encode_header(header, MSGPACK)
        found = cache.find(data)
        if found is not None:
            assert found == PutMessageHeader.from_ext(decode_header(MSGPACK, data).ext)
            assert opaque_of(data) == header.opaque


@given(topics, st.integers(0, 9), acks, st.integers(2**16 + 1, 2**31 - 1))
def test_what_producers_send_is_known_again(topic: str, queue_id: int, ack: AckLevel, opaque: int) -> None:
    cache = PutHeaderCache()
    put = PutMessageHeader(topic, queue_id, 1, ack)
    for number in (opaque, opaque - 1):
        header = Header(
            int(RequestCode.PUT_MESSAGE), number, ext=put.to_ext(MSGPACK), language=int(LanguageCode.PYTHON)
        )
        assert cache.find(encode_header(header, MSGPACK)) == put


@given(st.lists(odd_headers | put_headers, max_size=8), st.binary(max_size=40))
def test_odd_headers_are_left_alone_or_read_rightly(headers: list[Header], noise: bytes) -> None:
    cache = PutHeaderCache()
    for data in [*(encode_header(header, MSGPACK) for header in headers), noise]:
        found = cache.find(data)
        if found is None:
            continue
        header = decode_header(MSGPACK, data)
        assert (header.code, header.flag) == (RequestCode.PUT_MESSAGE, 0)
        assert found == PutMessageHeader.from_ext(header.ext)


def test_a_cache_is_bounded() -> None:
    cache = PutHeaderCache()
    for queue_id in range(10_000):
        put = PutMessageHeader("t", queue_id, 1, AckLevel.FLUSHED)
        header = Header(int(RequestCode.PUT_MESSAGE), 70_000, ext=put.to_ext(MSGPACK))
        assert cache.find(encode_header(header, MSGPACK)) == put
    assert len(cache._known) <= 256


def answer(opaque: int, result: PutMessageResult) -> bytes:
    return encode_put_answer(
        opaque,
        result.queue_id,
        result.queue_offset,
        result.physical_offset,
        result.store_timestamp,
        result.store_host,
        result.ack,
    )


@given(opaques, results)
def test_an_answer_reads_as_the_result_it_was_made_of(opaque: int, result: PutMessageResult) -> None:
    (frame,) = FrameReader().receive_data(answer(opaque, result))
    assert not len(frame.body)
    header = decode_header(frame.header_type, frame.header)
    assert (header.code, header.opaque, header.flag, header.remark) == (0, opaque, RESPONSE_FLAG, None)
    assert PutMessageResult.from_ext(header.ext) == result


@given(st.lists(st.tuples(opaques, results), max_size=8))
def test_a_producer_takes_answers_by_their_shape(answers: list[tuple[int, PutMessageResult]]) -> None:
    cache = PutAnswerCache()
    for opaque, result in answers * 2:
        data = answer(opaque, result)[8:]
        assert cache.find(data) == (opaque, result)


@given(st.lists(st.tuples(opaques, results, st.integers(0, 200), st.integers(0, 255)), max_size=8))
def test_a_changed_answer_is_never_taken_for_another(
    answers: list[tuple[int, PutMessageResult, int, int]],
) -> None:
    cache = PutAnswerCache()
    for opaque, result, place, byte in answers * 2:
        data = bytearray(answer(opaque, result)[8:])
        cache.find(bytes(data))
        data[place % len(data)] = byte
        found = cache.find(bytes(data))
        if found is None:
            continue
        header = decode_header(MSGPACK, bytes(data))
        assert (header.code, header.flag, header.opaque) == (0, RESPONSE_FLAG, found[0])
        assert PutMessageResult.from_ext(header.ext) == found[1]


@given(st.lists(odd_headers, max_size=8), st.binary(max_size=40))
def test_other_answers_are_left_to_the_ordinary_way(headers: list[Header], noise: bytes) -> None:
    cache = PutAnswerCache()
    for data in [*(encode_header(header, MSGPACK) for header in headers), noise]:
        found = cache.find(data)
        if found is not None:
            with suppress(HeaderMalformed, HeaderFieldError):
                assert PutMessageResult.from_ext(decode_header(MSGPACK, data).ext) == found[1]


@pytest.mark.parametrize("field", ["queueId", "queueOffset", "physicalOffset", "storeTimestamp"])
def test_an_answer_with_a_negative_number_is_left_to_the_ordinary_way(field: str) -> None:
    result = PutMessageResult(0, 1, 2, 3, "127.0.0.1:10911", AckLevel.FLUSHED)
    ext = result.to_ext(MSGPACK) | {field: -1}
    data = encode_header(Header(0, 70_000, RESPONSE_FLAG, ext=ext), MSGPACK)
    assert PutAnswerCache().find(data) is None
