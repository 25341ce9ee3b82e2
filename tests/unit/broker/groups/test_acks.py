"""What `reput_acks_total` counts: messages committed, and delivered again; commits that come late."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reput_broker.groups.lag import GroupProgress
from reput_broker.groups.offset_updates import OffsetCommits, PendingResets
from reput_broker.observe.counters import Counters
from reput_broker.tables.offsets import ConsumerOffsetManager


class Bench:
    def __init__(self, offsets: ConsumerOffsetManager) -> None:
        self.offsets = offsets
        self.counters = Counters()
        self.resets = PendingResets()
        self._commits = OffsetCommits(offsets, self.resets, GroupProgress(), self.counters, lambda: None, lambda: 0)

    def pull(self, offset: int, next_offset: int, peer: str = "a") -> None:
        self._commits.note_pull("g", "T", 0, offset, next_offset, peer)

    def commit(self, offset: int, *, increase_only: bool = False) -> None:
        self._commits.commit("g", "T", 0, offset, increase_only=increase_only)

    def counts(self) -> dict[str, int]:
        return {result: count for (_, result), count in self.counters.acks.items()}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    offsets = ConsumerOffsetManager(tmp_path / "consumerOffset.json", clock_ms=lambda: 0)
    offsets.load()
    yield Bench(offsets)
    offsets.close()


def test_messages_are_acknowledged_by_commits(bench: Bench) -> None:
    bench.pull(100, 132)
    bench.commit(110)
    bench.commit(110)
    bench.commit(132)
    assert bench.counts() == {"ack": 32}, "from the first pull of a group that had no offset"


def test_the_first_commit_of_a_group_that_pulled_nothing_acknowledges_nothing(bench: Bench) -> None:
    bench.commit(1_000_000)
    bench.commit(-1)
    assert bench.counts() == {}


@pytest.mark.parametrize(
    "late",
    [
        lambda bench: bench.commit(5),
        lambda bench: bench.commit(5, increase_only=True),
        lambda bench: (bench.resets.set("g", "T", 0, 3), bench.commit(12)),
    ],
    ids=["older", "older and ignored", "of a member that does not know of a reset"],
)
def test_a_late_commit(bench: Bench, late: Callable[[Bench], object]) -> None:
    bench.pull(0, 32)
    bench.commit(10)
    late(bench)
    assert bench.counts() == {"ack": 10, "late": 1}


def test_messages_that_are_delivered_again_have_expired(bench: Bench) -> None:
    bench.pull(0, 32)
    bench.commit(10)
    bench.pull(10, 32, peer="b")  # its first member is gone
    bench.pull(32, 40, peer="b")
    assert bench.counts() == {"ack": 10, "expired": 22}


def test_members_that_each_read_everything_expire_nothing(bench: Bench) -> None:
    for peer in ("a", "b", "c"):
        bench.pull(0, 32, peer)
    assert bench.counts() == {}, "the group commits no offset here"
