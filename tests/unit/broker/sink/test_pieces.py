"""A staged block is put in pieces that together are the block."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from reput_broker.sink.publisher import pieces_of
from reput_protocol.message import Message
from reput_protocol.record_batch import check_put_block, encode_put_block
from reput_protocol.record_view import record_views


@given(st.lists(st.integers(0, 400), min_size=1, max_size=60), st.integers(1, 3000), st.data())
def test_pieces_are_whole_records_in_order_and_as_large_as_allowed(
    sizes: list[int], piece_bytes: int, data: st.DataObject
) -> None:
    bodies = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    block = encode_put_block([Message("t", body) for body in bodies], "t", 0, 1)
    skipped = data.draw(st.integers(0, len(sizes)))
    pieces = list(pieces_of(block, piece_bytes, skipped))
    found = []
    for piece in pieces:
        assert piece.messages == 1 or len(piece.data) <= piece_bytes
        check = check_put_block(bytes(piece.data), topic="t", queue_id=0, count=piece.messages)
        assert check.positions == piece.positions
        found += [view.body for view in record_views(bytes(piece.data))]
    assert found == bodies[skipped:]
    for piece, following in pairwise(pieces):
        first = len(record_views(bytes(following.data))) and record_views(bytes(following.data))[0].size
        assert len(piece.data) + first > piece_bytes
