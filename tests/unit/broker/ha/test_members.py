"""Which members of a group a broker can name, without any name server."""

from __future__ import annotations

from reput_broker.namesrv.members import GroupMembers
from reput_protocol.commands.replica import MemberBroker
from support.waiting import FakeSeconds

DAY_S = 24 * 3600.0


def members_of(own_id: int, address: str, clock: FakeSeconds) -> GroupMembers:
    members = GroupMembers(clock)
    members.own_id, members.own_address = own_id, address
    return members


def listed(members: GroupMembers) -> dict[int, str]:
    return {member.slave_id: member.address for member in members.others()}


def test_each_member_learns_of_all_others() -> None:
    clock = FakeSeconds()
    master, slave = members_of(1, "a:1", clock), members_of(2, "b:1", clock)
    master.asked(2, "b:1", "10.0.0.2")
    master.asked(3, "0.0.0.0:1", "10.0.0.3")
    slave.learned(master.all())
    assert listed(master) == {2: "b:1", 3: "10.0.0.3:1"}
    assert listed(slave) == {1: "a:1", 3: "10.0.0.3:1"}


def test_what_is_no_member_or_no_address_is_not_listed() -> None:
    members = members_of(1, "a:1", FakeSeconds())
    for slave_id, address in ((None, "b:1"), (0, "b:1"), (1, "b:1"), (2, None), (2, ""), (2, "no address")):
        members.asked(slave_id, address, "10.0.0.2")
    assert listed(members) == {}
    assert members_of(0, "a:1", FakeSeconds()).all() == [], "a master without an election has no other id"


def test_a_member_that_is_away_stays_listed_for_a_day() -> None:
    clock = FakeSeconds()
    master, slave = members_of(0, "a:1", clock), members_of(1, "b:1", clock)
    master.asked(2, "c:1", "")
    clock.now += DAY_S - 1
    slave.learned(master.all())
    assert listed(slave) == {2: "c:1"}
    clock.now += 2
    assert (listed(master), listed(slave)) == ({}, {})


def test_the_latest_address_of_a_member_counts() -> None:
    clock = FakeSeconds()
    members = members_of(1, "a:1", clock)
    members.asked(2, "b:1", "")
    clock.now += 5
    members.asked(2, "b:2", "")
    members.learned([MemberBroker(2, "b:1", 5.0)])
    assert listed(members) == {2: "b:2"}


def test_one_host_names_few_members() -> None:
    """Their addresses are in the routes of clients, and any user who may replicate names them."""
    clock = FakeSeconds()
    master = members_of(0, "a:1", clock)
    master.asked(1, "b:1", "10.0.0.2")
    for slave_id in range(2, 200):
        clock.now += 0.01
        master.asked(slave_id, f"evil-{slave_id}:1", "10.6.6.6")
    assert listed(master) == {1: "b:1", **{n: f"evil-{n}:1" for n in range(192, 200)}}, "the latest"
    for host in range(20):
        for slave_id in range(1000 + 8 * host, 1008 + 8 * host):
            clock.now += 0.01
            master.asked(slave_id, f"evil-{slave_id}:1", f"10.6.7.{host}")
    assert len(listed(master)) == 32
    assert listed(master)[1] == "b:1"
    master.asked(2, "c:1", "10.0.0.3")
    assert 2 not in listed(master)
    clock.now += 61.0
    master.asked(2, "c:1", "10.0.0.3")
    assert listed(master)[2] == "c:1", "one that is away makes room"
    assert len(listed(master)) == 32


def test_another_host_does_not_move_a_member_that_is_there() -> None:
    clock = FakeSeconds()
    master, slave = members_of(0, "a:1", clock), members_of(3, "d:1", clock)
    master.asked(1, "b:1", "10.0.0.2")
    for _ in range(30):
        clock.now += 5.0
        master.asked(1, "evil:1", "10.6.6.6")
        master.asked(1, "b:1", "10.0.0.2")
        assert listed(master) == {1: "b:1"}
    slave.learned(master.all())
    slave.asked(1, "b:1", "10.6.6.6")
    slave.asked(1, "evil:1", "10.6.6.6")
    assert listed(slave) == {1: "b:1"}, "nor one that the master has named"
    master.asked(1, "b:2", "10.0.0.2")
    assert listed(master) == {1: "b:2"}, "it may move itself"
    clock.now += 61.0
    master.asked(1, "c:1", "10.0.0.3")
    assert listed(master) == {1: "c:1"}, "it runs on another machine now"
