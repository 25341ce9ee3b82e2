"""Messages that may come twice: the index knows what was dispatched, memory the rest, and a late first attempt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reput_broker.remoting.request import Refusal
from reput_broker.send.deduplication import Deduplication, StoredAt, unique_ids_of
from reput_broker.store.base.results import Block, PutResult
from reput_broker.store.index import query as index_query
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from support.stores import BORN_HOST, T0, FakeClock, opened, put, small_options


class Broker:
    """What puts blocks as the broker does, with one event loop's worth of order."""

    def __init__(self, store: MessageStore, clock: FakeClock) -> None:
        self.store = store
        self.window_s = 600.0
        self.deduplication = Deduplication(store, clock_ms=clock, window_s=lambda: self.window_s)

    def dispatch(self) -> None:
        self.store.flush_commit_log()
        while self.store.reput_step():
            pass

    def complete_index(self) -> None:
        self.dispatch()
        self.store.complete_index()

    def put(
        self, *unique_ids: str, check: bool = False, look_up: bool | None = None, queue_id: int = 0, body: bytes = b"x"
    ) -> PutResult:
        """Put a block; `look_up` False leaves out what a look into the index had found."""
        messages = [Message("T", body, unique_id=unique_id) for unique_id in unique_ids]
        block = encode_put_block(messages, "T", queue_id, T0)
        ids, sizes = unique_ids_of(block, "T", len(messages))
        assert ids == list(unique_ids)
        known: list[StoredAt | None] = []
        if check if look_up is None else look_up:
            self.complete_index()
            known = self.deduplication.find_all("T", ids)
        before = self.deduplication.stored_before("T", ids, sizes, known)
        if before is not None:
            return before
        result = self.store.put_one(Block(bytearray(block), "T", queue_id, len(messages), BORN_HOST))
        self.deduplication.remember("T", queue_id, ids, sizes, result, checked=check)
        return result


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(tmp_path: Path, clock: FakeClock) -> Iterator[Broker]:
    store = opened(small_options(tmp_path), clock)
    yield Broker(store, clock)
    store.close()


def places(result: PutResult) -> tuple[int, int, int, int]:
    return result.queue_offset, result.physical_offset, result.end_offset, result.count


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_repeated_send_has_the_outcome_of_the_first(broker: Broker, dispatched: bool) -> None:
    first = broker.put("a", "b", queue_id=2)
    if dispatched:
        broker.dispatch()
    again = broker.put("a", "b", check=True, queue_id=3)
    assert places(again) == places(first)
    assert getattr(again, "queue_id", None) == 2
    assert again.store_timestamp_ms == first.store_timestamp_ms


def test_what_a_new_master_does_not_know_to_be_confirmed_is_stored_all_the_same(
    broker: Broker, clock: FakeClock
) -> None:
    """A start dispatches the whole log; the confirm offset of a new tenure begins before its end."""
    first = broker.put("a", "b")
    assert broker.store.close()
    broker = Broker(opened(broker.store.options, clock), clock)
    broker.store.confirm_offset = first.physical_offset
    assert places(broker.put("a", "b", check=True)) == places(first)
    assert broker.store.close()


@pytest.mark.parametrize("dispatched", [False, True])
def test_one_message_of_a_block_is_found_in_it(broker: Broker, dispatched: bool) -> None:
    first = broker.put("a", "b", "c")
    if dispatched:
        broker.dispatch()
    again = broker.put("b", check=True)
    assert again.queue_offset == first.queue_offset + 1
    assert first.physical_offset < again.physical_offset < again.end_offset < first.end_offset


@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize("ids", [("a", "new"), ("new", "a"), ("b", "a"), ("a", "z")])
def test_a_block_that_is_stored_in_part_or_otherwise_is_refused(
    broker: Broker, dispatched: bool, ids: tuple[str, ...]
) -> None:
    broker.put("a", "b")
    broker.put("z")
    if dispatched:
        broker.dispatch()
    end = broker.store.max_physical_offset
    with pytest.raises(Refusal, match=r"messages (of the block )?are stored already"):
        broker.put(*ids, check=True)
    assert broker.store.max_physical_offset == end


def test_one_id_for_two_contents_is_refused(broker: Broker) -> None:
    broker.put("a", body=b"short", check=True)
    with pytest.raises(Refusal, match="another message with the unique id 'a' is stored at queue 0, offset 0"):
        broker.put("a", body=b"much longer", check=True)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("dispatched", [False, True])
def test_a_topic_that_was_deleted_is_forgotten(broker: Broker, check: bool, dispatched: bool) -> None:
    broker.put("a", check=check)
    if dispatched:
        broker.dispatch()
    broker.store.delete_topic("T")
    again = broker.put("a", check=True)
    assert (again.queue_offset, type(again)) == (0, PutResult)
    assert places(broker.put("a", check=True)) == places(again)


def test_one_id_twice_in_a_block_is_refused(broker: Broker) -> None:
    with pytest.raises(Refusal, match="two messages of the block have the unique id 'b'"):
        broker.put("a", "b", "c", "b")


def test_a_first_attempt_that_comes_after_its_repetition_is_known(broker: Broker) -> None:
    repeated = broker.put("a", check=True)
    broker.dispatch()
    broker.put("b")  # lets go of what is dispatched
    late = broker.put("a")  # sent first, and long, by a connection that its producer gave up
    assert places(late) == places(repeated)


def test_memory_holds_only_what_is_not_dispatched(broker: Broker) -> None:
    for number in range(100):
        broker.put(f"id{number}")
    assert len(broker.deduplication._undispatched) == 100
    broker.dispatch()
    broker.put("last")
    assert len(broker.deduplication._undispatched) == 1


def test_puts_dispatched_during_a_lookup_are_not_missed(broker: Broker) -> None:
    with broker.deduplication.look():
        broker.complete_index()
        known = broker.deduplication.find_all("T", ["a"])
        assert known == [None]
        first = broker.put("a")  # by another connection
        broker.dispatch()
        broker.put("b")
        assert places(broker.put("a", look_up=False)) == places(first)


def test_after_a_restart_the_index_knows(tmp_path: Path, clock: FakeClock) -> None:
    store = opened(small_options(tmp_path), clock)
    first = Broker(store, clock).put("a")
    store.close()
    store = opened(small_options(tmp_path), clock)
    assert places(Broker(store, clock).put("a", check=True)) == places(first)
    store.close()


@pytest.mark.parametrize("checked", [False, True])
def test_the_window_ends(broker: Broker, clock: FakeClock, checked: bool) -> None:
    first = broker.put("a", check=checked)
    clock.now_ms += 600_000
    assert places(broker.put("a", check=True)) == places(first)
    clock.now_ms += 1
    assert places(broker.put("a", check=True)) != places(first)


def test_a_key_of_another_message_is_not_a_unique_id(broker: Broker) -> None:
    message = Message("T", b"x", unique_id="other", keys=["a"])
    block = bytearray(encode_put_block([message], "T", 0, T0))
    broker.store.put_one(Block(block, "T", 0, 1, BORN_HOST))
    broker.dispatch()
    assert broker.put("a", check=True).queue_offset == 1


def test_a_message_without_an_id_is_refused() -> None:
    block = encode_put_block([Message("T", b"x", unique_id="a"), Message("T", b"y")], "T", 0, T0)
    with pytest.raises(Refusal, match="record 1 has none"):
        unique_ids_of(block, "T", 2)


@pytest.mark.parametrize("cut", [1, 40, 87, 88, 100, 120])
def test_a_truncated_block_gives_fewer(cut: int) -> None:
    block = encode_put_block([Message("T", b"x", unique_id="a")] * 2, "T", 0, T0)
    assert len(unique_ids_of(block[:-cut], "T", 2)[0]) < 2


def test_a_gap_that_lasts_is_no_reason_to_send_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    key_index = broker.store._key_index
    monkeypatch.setattr(key_index, "has_gap", True)  # as after damage in the part of the log that was indexed again
    broker.put("a")
    assert broker.put("a", check=True).count == 1, "what is found is found"
    with pytest.raises(Refusal, match=r"'b' is stored; .*reput store verify.*reput store rebuild") as refused:
        broker.put("b", check=True)
    assert not refused.value.error.retryable


def test_too_many_candidates_are_no_reason_to_send_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_query, "CANDIDATES_MAX", 3)
    for number in range(4):
        put(broker.store, b"%d" % number, keys=["hot"])
    with pytest.raises(Refusal, match="'hot' is stored; give every message its own unique id") as refused:
        broker.put("hot", check=True)
    assert not refused.value.error.retryable


def test_an_index_that_is_behind_is_a_reason_to_send_again(broker: Broker) -> None:
    assert broker.store._index is not None
    broker.store._index.is_behind = True
    with pytest.raises(Refusal, match=r"the index is being completed, .*; send it again shortly") as refused:
        broker.put("a", check=True)
    assert refused.value.error.retryable
