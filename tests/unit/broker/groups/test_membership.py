"""In every way to join and leave, all tables agree, and the others are notified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.groups.membership import GroupNotifier, Membership
from reput_broker.groups.queue_locks import QueueLocks
from reput_broker.observe.counters import Counters
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_protocol.commands.group import ConsumerData, SubscriptionData
from support.member_fakes import FakeClient, consumer_data


class Bench:
    def __init__(self, path: Path, **options: Any) -> None:
        self.now = 1000.0
        self.options = GroupsConfig(**options)
        self.counters = Counters()
        self.groups = ConsumerGroups()
        settings = SubscriptionGroupManager(path / "subscriptionGroup.json", clock_ms=lambda: 0)
        self.notifier = GroupNotifier(self.groups, settings, self.options, clock=self.clock)
        self.locks = QueueLocks(self.options, self.clock)
        self.other_filters: list[str] = []
        self.membership = Membership(
            self.options,
            self.counters,
            self.groups,
            self.notifier,
            self.locks,
            on_filters=self.other_filters.append,
            clock=self.clock,
        )

    def clock(self) -> float:
        return self.now

    def heard(
        self, client: FakeClient, client_id: str, *consumers: ConsumerData, producers: tuple[str, ...] = ()
    ) -> list[str]:
        refused = self.membership.heard(
            client, client_id, 0, 479, consumers=list(consumers), producer_groups=list(producers)
        )
        return [conflict.group for conflict in refused]

    def ids(self, group: str = "g") -> list[str]:
        online = self.groups.get(group)
        return [] if online is None else sorted(online.client_ids())

    def told(self) -> list[str]:
        """The groups that have changed since the last look."""
        changed = sorted(self.notifier._due)
        self.notifier._due.clear()
        return changed

    def rebalances(self, reason: str, group: str = "g") -> int:
        return self.counters.rebalances.get((group, reason), 0)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_heartbeat_joins_groups_and_notifies_only_of_changes(bench: Bench) -> None:
    client = FakeClient()
    both = (consumer_data("g", "T"), consumer_data("h", "T"))
    bench.heard(client, "a", *both, producers=("p",))
    assert (bench.ids("g"), bench.ids("h")) == (["a"], ["a"])
    assert bench.membership.producers.pick("p") is bench.membership.clients.find("a")
    assert bench.told() == ["g", "h"]
    bench.heard(client, "a", *both, producers=("p",))
    assert bench.told() == []
    bench.heard(client, "a", consumer_data("g", "T", version=9))
    assert bench.told() == [], "a newer version of the same topics is no change of the group"
    bench.heard(client, "a", consumer_data("g", "T", "U"))
    assert bench.told() == ["g"]
    assert [bench.rebalances(reason) for reason in ("join", "topic_change", "leave", "timeout")] == [1, 1, 0, 0]


def test_a_member_that_says_that_it_leaves(bench: Bench) -> None:
    client, other = FakeClient(), FakeClient()
    bench.heard(client, "a", consumer_data("g", "T"), consumer_data("h", "T"), producers=("p",))
    bench.heard(other, "b", consumer_data("g", "T"))
    bench.told()
    bench.membership.left(client, consumer_group="g", producer_group="p")
    assert (bench.ids("g"), bench.ids("h")) == (["b"], ["a"])
    assert bench.membership.producers.pick("p") is None
    assert bench.told() == ["g"]
    bench.membership.left(client, consumer_group="g", producer_group="p")
    bench.membership.left(FakeClient(), consumer_group="g", producer_group=None)
    assert bench.told() == []
    assert bench.rebalances("leave") == 1


def test_a_connection_that_ends_takes_its_member_out_of_everything(bench: Bench) -> None:
    client, other = FakeClient(), FakeClient()
    bench.heard(client, "a", consumer_data("g", "T"), consumer_data("h", "T"), producers=("p", "q"))
    bench.heard(other, "b", consumer_data("g", "T"))
    bench.told()
    bench.membership.gone(client)
    bench.membership.gone(client)
    assert (bench.ids("g"), bench.ids("h")) == (["b"], [])
    assert len(bench.membership.producers) == 0
    assert bench.membership.clients.find("a") is None
    assert bench.told() == ["g", "h"]
    assert bench.rebalances("leave") == 1


def test_a_member_that_has_reconnected_stays_one_when_its_first_connection_ends(bench: Bench) -> None:
    first, second = FakeClient(), FakeClient()
    bench.heard(first, "a", consumer_data("g", "T"))
    bench.heard(second, "a", consumer_data("g", "T"))
    bench.membership.gone(first)
    assert bench.ids() == ["a"]
    found = bench.groups.find("g", "a")
    assert found is not None
    assert found.client is second


def test_a_connection_that_changes_its_id_is_another_client(bench: Bench) -> None:
    client = FakeClient()
    bench.heard(client, "a", consumer_data("g", "T"), consumer_data("h", "T"))
    bench.heard(client, "b", consumer_data("g", "T"))
    assert (bench.ids("g"), bench.ids("h")) == (["b"], [])
    assert bench.membership.clients.find("a") is None


def test_a_member_without_heartbeats_is_dropped_and_disconnected(bench: Bench) -> None:
    silent, producer, alive = FakeClient(), FakeClient(), FakeClient()
    bench.heard(silent, "silent", consumer_data("g", "T"))
    bench.heard(producer, "producer", producers=("p",))
    bench.heard(alive, "alive", consumer_data("g", "T"), consumer_data("h", "T"))
    bench.told()
    bench.now += 119.0
    bench.heard(alive, "alive", consumer_data("g", "T"))
    bench.membership.expire()
    assert bench.ids() == ["alive", "silent"]
    bench.now += 2.0
    bench.membership.expire()
    assert (bench.ids("g"), bench.ids("h")) == (["alive"], [])
    assert (silent.closed_for, producer.closed_for, alive.closed_for) == ("idle", "idle", None)
    assert bench.told() == ["g", "h"]
    assert (bench.rebalances("timeout"), bench.rebalances("timeout", "h")) == (1, 1)


def test_members_that_do_not_agree_are_logged_and_counted(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.heard(FakeClient(), "a", consumer_data("g", T="x"))
    odd = FakeClient()
    assert bench.heard(odd, "b", consumer_data("g", T="y")) == []
    assert bench.ids() == ["a", "b"], "by default that is all"
    assert bench.counters.subscription_conflicts == {"g": 1}
    log = capsys.readouterr().out
    for fact in ("subscription_conflict", "client_id=b", "T with 'y'", "other_client_id=a", "T with 'x'"):
        assert fact in log
    bench.heard(odd, "b", consumer_data("g", T="y"))
    assert bench.counters.subscription_conflicts == {"g": 2}, "as long as it lasts"


def test_members_that_do_not_agree_can_be_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, refuse_subscription_conflicts=True)
    first, second = FakeClient(), FakeClient()
    bench.heard(first, "a", consumer_data("g", T="x"))
    bench.told()
    assert bench.heard(second, "b", consumer_data("g", T="y"), consumer_data("h", "T")) == ["g"]
    assert (bench.ids("g"), bench.ids("h")) == (["a"], ["b"]), "the other group is joined all the same"
    assert bench.told() == ["h"]
    assert bench.heard(second, "b", consumer_data("g", T="x")) == []
    bench.told()
    assert bench.heard(first, "a", consumer_data("g", T="z")) == ["g"]
    assert bench.ids("g") == ["b"]
    assert bench.told() == ["g"], "its queues go to the others"


def test_locks_of_a_member_that_leaves_are_free_at_once_those_of_a_dead_one_expire(bench: Bench) -> None:
    leaves, dies = FakeClient(), FakeClient()
    bench.heard(leaves, "a", consumer_data("g", "T"))
    bench.heard(dies, "b", consumer_data("g", "T"))
    bench.locks.lock("g", "a", [("T", 0)])
    bench.locks.lock("g", "b", [("T", 1)])
    bench.membership.left(leaves, consumer_group="g", producer_group=None)
    bench.membership.gone(dies)
    assert bench.locks.lock("g", "c", [("T", 0), ("T", 1)]) == [("T", 0)]
    bench.now += 60.0
    assert bench.locks.lock("g", "c", [("T", 1)]) == [("T", 1)]


def test_locks_are_kept_on_leaving_if_so_configured_or_if_the_member_is_still_there(tmp_path: Path) -> None:
    kept = Bench(tmp_path, free_locks_on_unregister=False)
    client = FakeClient()
    kept.heard(client, "a", consumer_data("g", "T"))
    kept.locks.lock("g", "a", [("T", 0)])
    kept.membership.left(client, consumer_group="g", producer_group=None)
    assert kept.locks.owner("g", ("T", 0)) == "a"

    twice = Bench(tmp_path)
    first, second = FakeClient(), FakeClient()
    twice.heard(first, "a", consumer_data("g", "T"))
    twice.heard(second, "a", consumer_data("g", "T"))
    twice.locks.lock("g", "a", [("T", 0)])
    twice.membership.left(first, consumer_group="g", producer_group=None)
    assert twice.locks.owner("g", ("T", 0)) == "a"


class Name(str):
    """A group's name that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        Name.compared += 1
        return str.__ne__(self, other)

    __hash__ = str.__hash__


def test_many_groups_of_a_client_come_and_go_in_proportion_to_their_number(bench: Bench) -> None:
    """A connection that ends takes each of its groups out once, without a look at the others."""
    client, count = FakeClient(), 500
    names = [Name(f"g{number}") for number in range(count)]
    Name.compared = 0
    bench.heard(client, "a", *(consumer_data(name, "T") for name in names), producers=tuple(names))
    bench.membership.gone(client)
    assert len(bench.membership.producers) == len(bench.groups) == 0
    assert Name.compared < 20 * count


def test_memory_of_members_is_counted_while_they_are_members(bench: Bench) -> None:
    first, second = FakeClient(), FakeClient()
    bench.heard(first, "a", consumer_data("g", "T" * 100, version=9), producers=("p",))
    held = bench.groups.held_bytes
    bench.heard(first, "a", consumer_data("g", "T" * 100, version=9), producers=("p",))
    assert bench.groups.held_bytes == held, "what is said again counts once"
    bench.heard(second, "b", consumer_data("g", "U"))
    bench.membership.left(first, consumer_group="g", producer_group="p")
    assert 0 < bench.groups.held_bytes < held
    assert bench.membership.producers.held_bytes == 0
    bench.now += 3600
    bench.membership.expire()
    assert bench.groups.held_bytes == 0


def test_a_conflict_is_found_without_reading_every_member(bench: Bench) -> None:
    for number in range(100):
        bench.heard(FakeClient(), f"c{number}", consumer_data("g", "T"))
    group = bench.groups.get("g")
    assert group is not None
    group.members = LookedAt(group.members)
    bench.heard(FakeClient(), "other", consumer_data("g", "U"))
    assert bench.counters.subscription_conflicts == {"g": 1}


class LookedAt(dict[Any, Any]):
    """A table that must not be gone through."""

    def __iter__(self) -> Any:
        raise AssertionError("every member is looked at")

    items = values = keys = __iter__


def test_another_filter_is_reported(bench: Bench) -> None:
    def with_filter(expression: str, version: int) -> ConsumerData:
        return ConsumerData("g", subscriptions=[SubscriptionData.of("orders", expression, version)])

    client = FakeClient()
    for expression, version, reported in [("a", 1, 0), ("a", 2, 0), ("b", 3, 1), ("c", 3, 1), ("*", 4, 2)]:
        bench.heard(client, "c1", with_filter(expression, version))
        assert bench.other_filters == ["g"] * reported
