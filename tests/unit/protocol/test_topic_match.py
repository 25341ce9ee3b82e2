import numpy as np

from reput_protocol.columns import chain, decode_columns, gather
from reput_protocol.message import Message
from reput_protocol.put_block import encode_put_block
from reput_protocol.topic_match import has_topic


def test_only_the_very_topic_matches() -> None:
    block = encode_put_block([Message("orders", b"a"), Message("orders", b"bb")], "orders", 0, 1, ["1", "2"])
    columns = decode_columns(block)
    every = np.ones(2, np.bool_)
    assert has_topic(columns, every, "orders").tolist() == [True, True]
    assert has_topic(columns, ~every, "orders").tolist() == [False, False]
    for other in ("order", "orders2", "Orders", "x" * 500):
        assert has_topic(columns, every, other).tolist() == [False, False]


def test_an_answer_shorter_than_the_topic_has_none_of_it() -> None:
    columns, sound = gather(b"abc", chain(b"abc", 0, 3)[0])
    assert has_topic(columns, sound, "orders12345").tolist() == []
