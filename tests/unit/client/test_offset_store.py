"""Offset stores: three ways to read, and what a file survives."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput_client.blocking import LocalFileOffsetStore
from reput_client.blocking.offset_store import BlockingOffsetStore
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.errors import OffsetStoreDamaged, RequestTimeout
from reput_client.offset_store import ReadOffsetType, RemoteOffsetStore
from reput_protocol.message import MessageQueue

MEMORY = ReadOffsetType.READ_FROM_MEMORY
STORE = ReadOffsetType.READ_FROM_STORE
BOTH = ReadOffsetType.MEMORY_FIRST_THEN_STORE
Q0, Q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


class Group:
    """A group's offsets at a broker that may be out of reach."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, int], int] = {}
        self.reachable = True

    async def committed(self, topic: str, queue_id: int) -> int | None:
        if not self.reachable:
            raise RequestTimeout("offset", 1.0)
        return self.offsets.get((topic, queue_id))

    async def commit(self, topic: str, queue_id: int, offset: int) -> None:
        self.offsets[topic, queue_id] = offset


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture(params=["remote", "local"])
def store(request: pytest.FixtureRequest, group: Group, tmp_path: Path) -> BlockingOffsetStore:
    if request.param == "local":
        return LocalFileOffsetStore(tmp_path / "deep" / "offsets.json")
    return BlockingOffsetStore(RemoteOffsetStore(group), BlockingRuntime())


def test_nothing_kept_is_minus_one(store: BlockingOffsetStore) -> None:
    assert [store.read(Q0, kind) for kind in (MEMORY, STORE, BOTH)] == [-1, -1, -1]


def test_memory_and_store_are_told_apart(store: BlockingOffsetStore) -> None:
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


def test_updates_may_be_bound_to_increase(store: BlockingOffsetStore) -> None:
    store.update(Q0, 5)
    store.update(Q0, 3, increase_only=True)
    assert store.read(Q0, MEMORY) == 5
    store.update(Q0, 6, increase_only=True)
    store.update(Q0, 3)
    assert store.read(Q0, MEMORY) == 3


def test_persist_all_writes_the_named_and_forgets_the_others(store: BlockingOffsetStore) -> None:
    store.update(Q0, 1)
    store.update(Q1, 2)
    store.persist_all([Q1])
    assert store.clone() == {Q1: 2}
    assert store.read(Q1, STORE) == 2
    assert store.read(Q0, BOTH) == -1
    store.persist(Q0)


def test_a_clone_is_a_copy_of_one_topic(store: BlockingOffsetStore) -> None:
    store.update(Q0, 1)
    store.update(MessageQueue("u", "b", 0), 2)
    clone = store.clone("t")
    assert clone == {Q0: 1}
    clone[Q0] = 9
    assert store.read(Q0, MEMORY) == 1
    assert len(store.clone()) == 2


def test_a_broker_out_of_reach_is_minus_two(group: Group) -> None:
    store = BlockingOffsetStore(RemoteOffsetStore(group), BlockingRuntime())
    group.reachable = False
    assert store.read(Q0, STORE) == -2
    assert isinstance(store.failure, RequestTimeout)
    group.reachable = True
    assert store.read(Q0, STORE) == -1
    assert store.failure is None


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
