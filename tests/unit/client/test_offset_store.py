"""Offset stores: three ways to read, and damage that a file survives."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from reput_client.blocking import LocalFileOffsetStore, OffsetStore
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.consume.group.commits import OffsetsInStore
from reput_client.errors import ConnectFailed, OffsetStoreDamaged, RequestTimeout
from reput_client.offset_store import ReadOffsetType, RemoteOffsetStore
from reput_protocol.errors import BrokerBusy, BrokerError, ErrorCode, PermissionDenied, ReputError
from reput_protocol.record.message import MessageQueue

MEMORY = ReadOffsetType.READ_FROM_MEMORY
STORE = ReadOffsetType.READ_FROM_STORE
BOTH = ReadOffsetType.MEMORY_FIRST_THEN_STORE
Q0, Q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


class Group:
    """A group's offsets at brokers, whose answer may be an error or never come."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.failure: ReputError | None = None

    async def committed(
        self, topic: str, queue_id: int, *, broker_name: str | None, set_zero_if_not_found: bool
    ) -> int | None:
        assert set_zero_if_not_found, "the broker decides, as for RocketMQ's clients"
        if self.failure is not None:
            raise self.failure
        return self.offsets.get(MessageQueue(topic, str(broker_name), queue_id))

    async def commit(self, topic: str, queue_id: int, offset: int, *, broker_name: str | None) -> None:
        self.offsets[MessageQueue(topic, str(broker_name), queue_id)] = offset


@pytest.fixture
def group() -> Group:
    return Group()


def blocking_store(group: Group) -> OffsetStore:
    """Return a blocking store of offsets that are not at a broker."""
    store = OffsetStore()
    store._client, store._runtime = RemoteOffsetStore(group), BlockingRuntime()
    return store


@pytest.fixture(params=["remote", "local"])
def store(request: pytest.FixtureRequest, group: Group, tmp_path: Path) -> OffsetStore:
    if request.param == "local":
        return LocalFileOffsetStore(tmp_path / "deep" / "offsets.json")
    return blocking_store(group)


def test_nothing_kept_is_minus_one(store: OffsetStore) -> None:
    assert [store.read(Q0, kind) for kind in (MEMORY, STORE, BOTH)] == [-1, -1, -1]


def test_memory_and_store_are_told_apart(store: OffsetStore) -> None:
    store.update(Q0, 5)
    assert [store.read(Q0, kind) for kind in (MEMORY, BOTH)] == [5, 5]
    assert store.read(Q0, STORE) == -1
    store.persist(Q0)
    store.update(Q0, 9)
    assert store.read(Q0, BOTH) == 9
    assert store.read(Q0, STORE) == 5
    assert store.read(Q0, MEMORY) == 5, "what was read from the store is kept in memory"
    store.remove(Q0)
    assert store.read(Q0, MEMORY) == -1
    assert store.read(Q0, BOTH) == 5


def test_updates_may_be_bound_to_increase(store: OffsetStore) -> None:
    store.update(Q0, 5)
    store.update(Q0, 3, increase_only=True)
    assert store.read(Q0, MEMORY) == 5
    store.update(Q0, 6, increase_only=True)
    store.update(Q0, 3)
    assert store.read(Q0, MEMORY) == 3


def test_a_member_lowers_a_stored_offset_only_if_it_was_set_back(group: Group) -> None:
    kept, runtime = OffsetsInStore(RemoteOffsetStore(group)), BlockingRuntime()
    runtime.run(kept.write(Q0, 5, increase_only=True, timeout_s=None))
    runtime.run(kept.write(Q0, 3, increase_only=True, timeout_s=None))
    assert group.offsets == {Q0: 5}
    runtime.run(kept.write(Q0, 3, increase_only=False, timeout_s=None))
    assert group.offsets == {Q0: 3}


def test_a_member_commits_from_the_beginning_where_the_stored_offset_is_gone(group: Group) -> None:
    kept, runtime = OffsetsInStore(RemoteOffsetStore(group)), BlockingRuntime()
    runtime.run(kept.write(Q0, 5, increase_only=True, timeout_s=None))
    del group.offsets[Q0]
    assert runtime.run(kept.read(Q0, None)) is None
    runtime.run(kept.write(Q0, 1, increase_only=True, timeout_s=None))
    assert group.offsets == {Q0: 1}


def test_persist_all_writes_the_named_and_forgets_the_others(store: OffsetStore) -> None:
    store.update(Q0, 1)
    store.update(Q1, 2)
    store.persist_all([Q1])
    assert store.clone() == {Q1: 2}
    assert store.read(Q1, STORE) == 2
    assert store.read(Q0, BOTH) == -1
    store.persist(Q0)


def test_a_clone_is_a_copy_of_one_topic(store: OffsetStore) -> None:
    store.update(Q0, 1)
    store.update(MessageQueue("u", "b", 0), 2)
    clone = store.clone("t")
    assert clone == {Q0: 1}
    clone[Q0] = 9
    assert store.read(Q0, MEMORY) == 1
    assert len(store.clone()) == 2


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (RequestTimeout("offset", 1.0), -2),
        (ConnectFailed("h:1", "refused"), -2),
        (BrokerBusy(ErrorCode.BUSY), -1),
        (PermissionDenied(ErrorCode.NO_PERMISSION), -1),
        (BrokerError(ErrorCode.INTERNAL), -1),
    ],
)
def test_an_error_of_the_broker_is_minus_one_and_no_answer_minus_two(
    group: Group, failure: ReputError, expected: int
) -> None:
    store = blocking_store(group)
    group.failure = failure
    assert store.read(Q0, STORE) == expected
    assert store.failure is failure
    group.failure = None
    assert store.read(Q0, STORE) == -1
    assert store.failure is None


def test_a_member_does_not_take_an_error_for_a_group_without_progress(group: Group) -> None:
    """Otherwise it would begin like a new group, and commit that."""
    kept, runtime = OffsetsInStore(RemoteOffsetStore(group)), BlockingRuntime()
    group.failure = BrokerBusy(ErrorCode.BUSY)
    with pytest.raises(BrokerBusy):
        runtime.run(kept.read(Q0, None))
    group.failure = None
    assert runtime.run(kept.read(Q0, None)) is None


def test_queues_of_two_brokers_are_two_queues(group: Group) -> None:
    store = blocking_store(group)
    there = replace(Q0, broker_name="c")
    for queue, offset in ((Q0, 5), (there, 7)):
        store.update(queue, offset)
    store.persist_all([Q0, there])
    assert [store.read(queue, STORE) for queue in (Q0, there)] == [5, 7]
    assert group.offsets == {Q0: 5, there: 7}


def test_a_file_is_read_by_the_next_process_and_keeps_other_queues(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    first = LocalFileOffsetStore(path)
    first.update(Q0, 1)
    first.update(Q1, 2)
    first.persist_all([Q0, Q1])
    second = LocalFileOffsetStore(path)
    second.update(Q0, 10)
    second.persist(Q0)
    third = LocalFileOffsetStore(path)
    assert (third.read(Q0, BOTH), third.read(Q1, BOTH)) == (10, 2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["offsets.json", "offsets.json.bak"]


def test_a_damaged_file_is_replaced_by_its_backup_and_never_overwritten_blindly(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = LocalFileOffsetStore(path)
    for offset in (1, 2):
        store.update(Q0, offset)
        store.persist(Q0)
    path.write_bytes(b'{"version": 1, "offs')
    assert store.read(Q0, STORE) == 1, "the version before"
    path.with_name("offsets.json.bak").write_bytes(b"junk")
    assert store.read(Q0, STORE) == -2
    assert isinstance(store.failure, OffsetStoreDamaged)
    store.update(Q0, 3)
    with pytest.raises(OffsetStoreDamaged, match="delete it to start over"):
        store.persist(Q0)
    assert path.read_bytes() == b'{"version": 1, "offs'


def test_a_file_of_another_version_is_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text('{"version": 2, "offsets": []}')
    store = LocalFileOffsetStore(path)
    assert store.read(Q0, STORE) == -2
    assert "version 2" in str(store.failure)
