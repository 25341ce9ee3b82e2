"""A staged block is put in pieces that together are the block, small ones next to other puts and larger ones alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_broker.staging.batches import (
    ALONE_BYTES,
    ALONE_SYNC_BYTES,
    SHARED_BYTES,
    SHARED_SYNC_BYTES,
    Pace,
    Piece,
    Pieces,
)
from reput_broker.store.base.results import StoreStats
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import check_put_block, encode_put_block
from reput_protocol.record.record import record_views


def all_of(block: bytes, skipped: int, piece_bytes: int) -> list[Piece]:
    pieces = Pieces(bytearray(block), skipped)
    return list(iter(lambda: pieces.take(piece_bytes), None))


@given(
    st.one_of(
        st.lists(st.integers(0, 400), min_size=1, max_size=60),
        st.builds(lambda size, count: [size] * count, st.integers(0, 400), st.integers(1, 60)),
    ),
    st.integers(1, 3000),
    st.data(),
)
def test_pieces_are_whole_records_in_order_and_as_large_as_allowed(
    sizes: list[int], piece_bytes: int, data: st.DataObject
) -> None:
    bodies = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    block = encode_put_block([Message("t", body) for body in bodies], "t", 0, 1)
    skipped = data.draw(st.integers(0, len(sizes)))
    pieces = all_of(bytes(block), skipped, piece_bytes)
    found = []
    for piece in pieces:
        assert piece.messages == 1 or len(piece.data) <= piece_bytes
        check = check_put_block(bytes(piece.data), topic="t", queue_id=0, count=piece.messages)
        assert check.count == piece.messages
        found += [view.body for view in record_views(bytes(piece.data))]
    assert found == bodies[skipped:]
    for piece, following in pairwise(pieces):
        first = len(record_views(bytes(following.data))) and record_views(bytes(following.data))[0].size
        assert len(piece.data) + first > piece_bytes


def test_pieces_are_large_only_while_no_other_client_puts() -> None:
    now, stats = [100.0], StoreStats()
    pace = Pace(stats, lambda: now[0], 1 << 30)
    assert (pace.piece_bytes, pace.sync_bytes) == (SHARED_BYTES, SHARED_SYNC_BYTES), "others may just have put"
    now[0] += 1.0
    assert (pace.piece_bytes, pace.sync_bytes) == (ALONE_BYTES, ALONE_SYNC_BYTES)
    stats.put_blocks += 1
    assert not pace.others_put(own=1), "that was the piece itself"
    assert pace.piece_bytes == ALONE_BYTES
    stats.put_blocks += 3
    assert pace.others_put(own=1)
    assert (pace.piece_bytes, pace.sync_bytes) == (SHARED_BYTES, SHARED_SYNC_BYTES)
    assert not pace.others_put(own=0), "each of theirs is seen once"
    now[0] += 1.0
    assert pace.piece_bytes == ALONE_BYTES
    assert Pace(stats, lambda: now[0], 1 << 30, quiet_s=1.0).is_alone, "nobody has put for a second"
    assert not Pace(stats, lambda: now[0], 1 << 30, quiet_s=-1.0).is_alone, "a clock that was set back tells nothing"


@pytest.mark.parametrize("most", [1000, SHARED_BYTES + 1])
def test_no_piece_is_larger_than_a_log_file_allows(most: int) -> None:
    now = [0.0]
    pace = Pace(StoreStats(), lambda: now[0], most)
    assert pace.piece_bytes == min(most, SHARED_BYTES)
    now[0] += 1.0
    assert pace.piece_bytes == most
