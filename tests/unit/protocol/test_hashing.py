"""Java's hashes, against values that Java computed."""

from __future__ import annotations

import pytest

from reput_protocol.kernel.tables import java_hash
from reput_protocol.record.layout import index_hash, tags_code


@pytest.mark.parametrize(
    ("text", "java", "index"),
    [
        ("", 0, 0),
        ("a", 97, 97),
        ("TagA", 2598919, 2598919),
        ("TagB", 2598920, 2598920),
        ("AaAa", 2031744, 2031744),
        ("BBBB", 2031744, 2031744),
        ("order-created", -392709271, 392709271),
        ("polygenelubricants", -(2**31), 0),
        ("\U0001f600", 1772899, 1772899),
        ("T\U0001f600", 1853623, 1853623),
        ("订单", 1129459, 1129459),
        ("TopicTest#K1", 2745032, 2745032),
        ("TopicTest#C0A8000A00002A9F0000000000000001", -2030518284, 2030518284),
    ],
)
def test_hashes_equal_javas(text: str, java: int, index: int) -> None:
    assert java_hash(text) == java
    assert index_hash(text) == index
    assert tags_code(text) == java


def test_no_tag_has_code_zero() -> None:
    assert tags_code(None) == 0
    assert tags_code("") == 0


def test_half_a_surrogate_pair_counts_as_its_own_unit() -> None:
    assert java_hash("\ud83d") == 0xD83D
