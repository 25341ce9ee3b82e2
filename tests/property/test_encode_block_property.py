"""The kernel's blocks are, byte for byte, the records that `encode_record` makes one by one."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.errors import InvalidMessage
from reput_protocol.properties import SENT_PROPERTIES_BYTES_MAX
from reput_protocol.record.message_id import IdRun
from reput_protocol.record.put_block import check_put_block, encode_block
from reput_protocol.record.record import Record, encode_record

BORN_AT = 1_700_000_000_000
IDS = IdRun("0A" * 14, 0xFFFE, 9)
OWN_ID = b"UNIQ_KEY\x01own\x02"
texts = st.sampled_from([b"", b"TAGS\x01t\x02", OWN_ID, OWN_ID + b"TAGS\x01\xc3\xa4\x02", b"UNIQ_KEYS\x01k\x02"])


@given(
    st.lists(st.tuples(st.binary(max_size=200), texts, st.integers(-(1 << 31), (1 << 31) - 1)), min_size=1, max_size=9),
    st.sampled_from(["t", "größe", "%RETRY%" + "g" * 140]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([bytes, bytearray, memoryview]),
)
def test_a_block_is_its_records_back_to_back(
    parts: list[tuple[bytes, bytes, int]], topic: str, with_ids: bool, alike: bool, kind: type
) -> None:
    bodies, own_texts, flags = map(list, zip(*parts, strict=True))
    if alike:
        own_texts, flags = own_texts[:1] * len(parts), flags[:1] * len(parts)
    expected = []
    for number, (body, text, flag) in enumerate(zip(bodies, own_texts, flags, strict=True)):
        if with_ids and not text.startswith(b"UNIQ_KEY\x01"):
            text = b"UNIQ_KEY\x01%b\x02%b" % (IDS[number].encode(), text)
        record = Record(topic, body, 3, flag, born_timestamp_ms=BORN_AT, properties=text)
        expected.append(encode_record(record))
    block, positions = encode_block(
        list(map(kind, bodies)),
        own_texts[:1] if alike else own_texts,
        topic,
        3,
        BORN_AT,
        ids=IDS if with_ids else None,
        flags=flags[:1] if alike else flags,
    )
    assert block == b"".join(expected)
    assert list(positions) == [0, *accumulate(map(len, expected))][:-1]
    check_put_block(block, topic=topic, queue_id=3, count=len(parts))


@pytest.mark.parametrize("ids", [None, IDS])
def test_the_first_text_that_does_not_fit_is_refused(ids: IdRun | None) -> None:
    room = SENT_PROPERTIES_BYTES_MAX - (0 if ids is None else len(f"UNIQ_KEY_{ids[0]}_"))
    block, _ = encode_block([b""] * 2, [b"x" * room], "t", 0, 0, ids=ids)
    assert block.count(b"x" * room) == 2
    with pytest.raises(InvalidMessage, match="take 31745 bytes, but at most 31743 fit"):
        encode_block([b""] * 3, [b"", b"x" * (room + 2), b"x" * 40_000], "t", 0, 0, ids=ids)


@pytest.mark.parametrize(("texts", "flags"), [(0, 1), (2, 1), (4, 1), (1, 0), (1, 2), (3, 4)])
def test_texts_and_flags_are_one_or_as_many_as_bodies(texts: int, flags: int) -> None:
    with pytest.raises(ValueError, match=f"{texts} texts and {flags} flags are given for 3 bodies"):
        encode_block([b"x"] * 3, [b""] * texts, "t", 0, 0, flags=[0] * flags)


def test_a_body_whose_length_is_not_its_bytes_is_refused() -> None:
    with pytest.raises(BufferError, match="8 bytes are copied to where there is room for"):
        encode_block([memoryview(bytes(8)).cast("I")], [b""], "t", 0, 0)

    class Longer(bytearray):
        def __len__(self) -> int:
            return 9

    with pytest.raises(BufferError, match="a body has fewer bytes than its length"):
        encode_block([Longer(b"12345")], [b""], "t", 0, 0)
    with pytest.raises(TypeError):
        encode_block(["text"], [b""], "t", 0, 0)  # type: ignore[list-item]
