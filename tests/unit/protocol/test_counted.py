"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from reput_protocol.printable import counted


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (0, ("queue",), "0 queues"),
        (1, ("queue",), "1 queue"),
        (2, ("queue",), "2 queues"),
        (1, ("message is", "messages are"), "1 message is"),
        (3, ("message is", "messages are"), "3 messages are"),
    ],
)
def test_numbers_of_things(count: int, words: tuple[str, ...], text: str) -> None:
    assert counted(count, *words) == text
