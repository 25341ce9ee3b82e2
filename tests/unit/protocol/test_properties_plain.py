"""Many texts together are plain if and only if each is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reput_protocol.properties import is_plain_text
from reput_protocol.properties_plain import texts_of_any_size_pass, texts_pass

ID = b"UNIQ_KEY\x01%04d\x02"
PIECES = st.sampled_from(
    [
        b"a\x01b\x02",
        b"TAGS\x01t1\x02",
        b"TAGS\x01t12\x02",
        b"DELAY\x013\x02",
        b"ELAY\x013\x02",
        b"REAL_X\x01y\x02",
        b"__CRC32#\x010123456789\x02",
        b"\x01",
        b"\x02",
        b"x",
        b"\x00",
        "é".encode(),
        b"a\x01\x02",
        b"b" * 200,
    ]
)
TEXTS = st.tuples(st.booleans(), st.lists(PIECES, max_size=3)).map(
    lambda made: (ID % 7 if made[0] else b"") + b"".join(made[1])
)


def judged(texts: list[bytes]) -> bool:
    sizes = np.array([len(text) for text in texts], np.int64)
    before = b"TOPIC\x01\x02"  # something stands before each text of a block
    data = b"\x02" * 300 + b"".join(before + text for text in texts)
    position = 300 + np.cumsum(sizes + len(before)) - sizes
    return texts_of_any_size_pass(data, position, sizes)


@given(st.lists(TEXTS.filter(bool), min_size=1, max_size=8), st.integers(0, 4))
@example([b"a\x01b\x02", b"LAY\x01b\x02", b"DELAY\x01b\x02"], 0)
@example([b"a\x01b\x02", b"\x01b\x02", b"aaa\x01b\x02"], 0)
@example([b"ab\x01c\x02", b"a\x01c\x02"], 0)
def test_texts_of_any_sizes(texts: list[bytes], ordinary: int) -> None:
    """What fills a text up must not make a name of none, or hide one that is reserved."""
    texts = [ID % number + b"TAGS\x01t%d\x02" % (number * 5) for number in range(ordinary)] + texts
    assert judged(texts) == all(is_plain_text(text) for text in texts)


@given(st.lists(TEXTS.filter(bool), min_size=1, max_size=8))
def test_texts_of_one_size(texts: list[bytes]) -> None:
    size = len(texts[0])
    texts = [text for text in texts if len(text) == size]
    assert texts_pass(b"".join(texts), len(texts)) == all(is_plain_text(text) for text in texts)


@pytest.mark.parametrize("name", [b"DELAY", b"REAL_TOPIC", b"INNER_NUM", b"POP_CK"])
@pytest.mark.parametrize("at", [0, 3, 9])
def test_a_reserved_name_is_found_whatever_its_text_is_filled_up_with(name: bytes, at: int) -> None:
    texts = [b"A\x01%d\x02" % (10**number) for number in range(10)]
    assert judged(texts)
    texts[at] = name + b"\x011\x02"
    assert not judged(texts)
