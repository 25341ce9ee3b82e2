"""The elector: who campaigns, when a tenure ends, what a hand-over does. The clock is trio's mock clock."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from reput_broker.ha.election.candidacy import OtherMembers
from reput_broker.ha.election.elector import Elector, Leadership
from reput_broker.ha.election.engine import GroupRecord, Leader, LeaseLost, Terms
from reput_broker.ha.election.in_sync_set import InSyncSet
from reput_broker.ha.election.mastership import HandOverRefused
from reput_broker.ha.election.member_file import MemberFile
from reput_broker.ha.epochs import Epoch, OwnLog
from reput_broker.put.put_lock import Fence
from reput_broker.tenure.core import Master, Role
from reput_protocol.commands.replica import ReplicaState
from support.election_engine import EngineState, FakeEngine
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=partial(run_by_the_clock, within_s=1000))

LEASE_S = 10.0


class Reachable(OtherMembers):
    """The other members that run, except those that this one does not reach."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self.unreachable: set[int] = set()
        self.asked: list[Mapping[int, str]] = []

    @property
    def addresses(self) -> dict[int, str]:
        member = self._member
        return {n + 1: f"{other.host}:10911" for n, other in member.group.members.items() if other is not member}

    def own_log(self) -> OwnLog:
        return OwnLog("c", "b", self._member.epochs, 0, self._member.end, 1024)

    async def ask(self, addresses: Mapping[int, str], within_s: float) -> list[ReplicaState]:
        self.asked.append(addresses)
        await trio.sleep(within_s if self.unreachable else 0.01)
        others = [self._member.group.members[number - 1] for number in addresses]
        return [
            other.state() for other in others if not other.scope.cancel_called and other.number not in self.unreachable
        ]


class Member:
    """One broker's elector, and a log that is only an end."""

    def __init__(self, group: Group, number: int, host: str = "") -> None:
        self.group, self.number, self.host = group, number, host or f"b{number}"
        self.engine = FakeEngine(group.state)
        self.end = 0
        self.log_epoch = 0
        self.epochs: list[Epoch] = []
        self.leadership: Leadership | None = None
        self.scope = trio.CancelScope()
        self.elector = self._make()

    def _make(self) -> Elector:
        n = self.number
        elector = Elector(
            self.engine,
            Leader(n, f"{self.host}:10911", f"{self.host}:10912"),
            Role.ASYNC_MASTER,
            MemberFile(self.group.path / str(n), cluster="c", broker_name="b", member=n),
            Terms(LEASE_S, first_master=1, in_sync_timeout_s=10.0, gap_max=1000),
            lambda: self.log_epoch,
            trio.current_time,
        )
        elector.others = self.others = Reachable(self)
        return elector

    def state(self) -> ReplicaState:
        """What it answers another member."""
        epochs, elector = self.epochs, self.elector
        return ReplicaState(
            "c",
            "b",
            self.leads,
            0,
            0,
            self.end,
            1024,
            [(epoch.number, epoch.start_offset) for epoch in epochs],
            member=self.number,
            seen_record=elector.seen_record,
            known_confirmed=elector.known_confirmed(epochs, self.end),
        )

    async def run(self) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.elector.run)
                while True:
                    tenure = self.elector.current
                    self.leadership = None
                    if tenure.is_master:
                        with suppress(LeaseLost):
                            self.leadership = self.elector.lead(tenure.epoch, self.epochs, self.end)
                    await self.elector.changed(tenure)

    def kill(self) -> None:
        self.scope.cancel()

    def confirmed(self, end: int = 1000) -> int:
        return self.elector.confirmed(self.epochs, end)

    def hears(self, epoch: int, offset: int, end: int) -> None:
        """Have a master tell what is confirmed, while this log ends at `end`."""
        self.elector.note_confirmed(epoch, offset, self.epochs, end)

    def restart(self) -> None:
        self.engine = FakeEngine(self.group.state)
        self.scope = trio.CancelScope()
        self.elector = self._make()
        self.group.nursery.start_soon(self.run)

    @property
    def in_sync(self) -> InSyncSet | None:
        return None if self.leadership is None else self.leadership.in_sync

    @property
    def leads(self) -> bool:
        return self.elector.current.is_master

    @property
    def acknowledges(self) -> bool:
        return self.leads and self.elector.fence.expiry() is None


class Group:
    """Three members and their engine."""

    def __init__(self, path: Path, nursery: trio.Nursery) -> None:
        self.path, self.nursery = path, nursery
        self.state = EngineState(LEASE_S)
        self.members = {n: Member(self, n) for n in (1, 2, 3)}

    def __getitem__(self, number: int) -> Member:
        return self.members[number]

    def start(self, *numbers: int) -> None:
        for number in numbers or self.members:
            self.nursery.start_soon(self.members[number].run)

    @property
    def master(self) -> Member:
        (master,) = [m for m in self.members.values() if m.acknowledges]
        return master

    async def copy_everything(self, *numbers: int, end: int | None = None) -> None:
        """Let the members copy the master's log, and join the in-sync set."""
        master = self.master
        master.end = master.end if end is None else end
        for _ in range(3):
            assert master.in_sync is not None
            master.in_sync.own(master.end, master.end)
            for number in numbers:
                self.members[number].end = master.end
                master.in_sync.acknowledged(number, master.end, trio.current_time())
            await trio.sleep(0.2)
        assert self.state.record.in_sync >= {*numbers}

    async def leave(self, number: int) -> None:
        """Let a member's connection end, so that it leaves the in-sync set."""
        in_sync = self.master.in_sync
        assert in_sync is not None
        in_sync.disconnected(number, trio.current_time())
        await trio.sleep(1.5)
        assert number not in self.state.record.in_sync


@pytest.fixture
async def group(tmp_path: Path, nursery: trio.Nursery) -> Group:
    return Group(tmp_path, nursery)


async def test_only_the_first_master_creates_a_group_and_the_others_follow(group: Group) -> None:
    group.start(2, 3)
    await trio.sleep(30)
    assert group.state.record == GroupRecord()
    assert "member 1 (election.first_master) creates it" in group[2].elector.reason
    group.start(1)
    await trio.sleep(1)
    assert group.master is group[1]
    assert group.state.record.epoch == group[1].elector.current.epoch == 1
    assert group.state.record.in_sync == {1}
    for number in (2, 3):
        tenure = group[number].elector.current
        assert (tenure.role, tenure.broker_id) == (Role.SLAVE, number + 1)
        assert tenure.master == Master("b1:10911", "b1:10912")


async def test_the_epoch_is_beyond_that_of_the_log(group: Group) -> None:
    group[1].log_epoch = 17  # a broker that served alone before
    group.start(1)
    await trio.sleep(1)
    assert group.state.record.epoch == 18


async def test_a_member_that_cannot_read_the_epochs_of_its_log_says_so_and_tries_again(group: Group) -> None:
    def fail() -> int:
        raise OSError("input/output error")

    group[1].elector._log_epoch = fail
    group.start(1)
    await trio.sleep(LEASE_S / 2)
    assert "cannot be read: input/output error" in group[1].elector.reason
    group[1].elector._log_epoch = lambda: 3
    await trio.sleep(LEASE_S)
    assert group.master is group[1]
    assert group.state.record.epoch == 4


async def test_a_member_in_sync_takes_over_when_the_lease_ends_and_not_before(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    killed_at = trio.current_time()
    group[1].kill()
    await group[2].elector.changed(group[2].elector.current)
    while not group[2].leads:
        await trio.sleep(0.01)
    assert LEASE_S * 0.8 <= trio.current_time() - killed_at <= LEASE_S + 0.1
    await trio.sleep(0.5)
    assert group.state.record.epoch == 2
    assert group.state.record.in_sync == {2}, "the others join again with what this member has"
    assert group[2].in_sync is not None
    assert group[2].in_sync.confirm == 500
    assert group[3].elector.current.master == Master("b2:10911", "b2:10912")


async def test_the_set_of_a_new_master_shrinks_only_when_its_log_is_open(group: Group) -> None:
    """A member that is elected and cannot open its log leaves the group as it was."""
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3, end=500)

    def fails(*_: object) -> tuple[Fence, InSyncSet]:
        raise LeaseLost("disk broken")

    first, second = group[2], group[3]
    first.elector.lead = second.elector.lead = fails  # type: ignore[assignment,method-assign]
    group[1].kill()
    while group.state.record.epoch < 2:
        await trio.sleep(0.1)
    assert group.state.record.in_sync == {1, 2, 3}


async def test_another_member_takes_over_from_a_new_master_that_fails_at_once(group: Group) -> None:
    """Without waiting for it to return: the set of a new master is not itself alone."""
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3, end=500)
    await trio.sleep(2)
    group[1].kill()
    while not any(group[n].leads and group[n].in_sync for n in (2, 3)):
        await trio.sleep(0.01)
    await trio.sleep(0.5)
    second = group.master
    assert group.state.record.in_sync == {2, 3}, "the master before has left"
    assert second.in_sync is not None
    assert second.in_sync.confirm < 500, "the other has not said yet that it has everything"
    second.kill()
    await trio.sleep(2 * LEASE_S)
    assert group.master is not second
    await trio.sleep(1.5)
    assert group.state.record.in_sync == {group.master.number}
    assert group.master.in_sync is not None
    assert group.master.in_sync.confirm == 500


async def test_a_member_that_is_not_in_sync_never_takes_over(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    group[1].kill()
    group[2].kill()
    await trio.sleep(100)
    assert group.state.record.leader is None
    assert "not in sync; only members [1, 2]" in group[3].elector.reason
    group[2].restart()
    await trio.sleep(1)
    assert group.master is group[2]


async def test_a_restarted_master_is_the_master_again_without_waiting_for_its_lease(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    group[1].kill()
    await trio.sleep(0.5)
    group[1].restart()
    await trio.sleep(0.5)
    assert group.master is group[1]
    assert group.state.record.epoch == 2


async def test_two_brokers_with_one_number_do_not_replace_each_other(group: Group) -> None:
    group.start(1)
    await trio.sleep(1)
    other = Member(group, 1, host="elsewhere")
    group.nursery.start_soon(other.run)
    await trio.sleep(30)
    assert group.master is group[1]
    assert "another broker, at b1:10911" in other.elector.reason


async def test_a_new_disk_under_the_number_of_a_member_in_sync_does_not_take_over(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    group[2].kill()
    (group.path / "2").unlink()
    group[2].restart()
    await trio.sleep(0.5)
    group[1].kill()
    await trio.sleep(100)
    assert group.state.record.leader is None
    assert "a new disk has none of the messages" in group[2].elector.reason


async def test_an_engine_that_lost_its_state_elects_no_master_from_old_members(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3, end=500)
    group.state.keep(GroupRecord())
    await trio.sleep(100)
    assert group.state.record.leader is None
    assert "the engine has lost its state" in group[1].elector.reason
    handed = await group[2].elector.hand_over(2, 500, force=True)
    assert handed.member == 2
    await trio.sleep(1)
    assert group.master is group[2]
    assert group.state.record.epoch == 2, "no epoch comes twice"


# The fence


async def test_a_member_that_saw_a_later_set_does_not_campaign_in_a_restored_engine(group: Group) -> None:
    """The set changes without a new epoch; a restart of the member does not forget it."""
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3)
    copy = group.state.record
    group[3].kill()
    await group.leave(3)
    await group.copy_everything(2)
    group[1].kill()
    group[2].kill()
    await trio.sleep(0.1)
    group.state.keep(replace(copy, leader=None))
    group[2].restart()
    await trio.sleep(2 * LEASE_S)
    assert f"version {copy.version} of this group, but this member saw epoch 1" in group[2].elector.reason
    group[3].restart()
    await trio.sleep(2 * LEASE_S)
    assert f"but member 2 saw epoch 1, version {copy.version + 1}: " in group[3].elector.reason
    assert not group[2].leads
    assert not group[3].leads, "an operator decides"
    group[2].kill()
    await trio.sleep(2 * LEASE_S)
    assert group.master is group[3], "it was away when it left the set"


async def test_a_member_does_not_campaign_that_lacks_what_another_knows_to_be_confirmed(group: Group) -> None:
    """The engine was restored from a copy, and no member that is left saw the later record; or a power cut took it."""
    group.start()
    await trio.sleep(1)
    for member in group.members.values():
        member.epochs = [Epoch(1, 0)]
    await group.copy_everything(2, 3, end=500)
    group[1].kill()
    group[3].hears(1, 500, 500)
    group[2].end = 400
    group[3].others.unreachable = {2}
    group[3].engine.is_cut_off = True
    await trio.sleep(2 * LEASE_S)
    assert "member 3 knows all up to offset 500 to be confirmed" in group[2].elector.reason
    assert "the same log as this one up to 400" in group[2].elector.reason
    group[3].engine.is_cut_off = False
    await trio.sleep(LEASE_S)
    assert group.master is group[3]


@pytest.mark.parametrize("knows", ["in an earlier tenure", "what was overruled", "of a log that is the same"])
async def test_what_others_have_confirmed_does_not_always_count(group: Group, knows: str) -> None:
    """A member out of the set knows more of a tenure that is over; an operator has decided; nothing is lacking."""
    group.start(1, 2)
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    group[1].epochs = group[2].epochs = [Epoch(1, 0)]
    group[3].end = 600
    group[3].epochs = [Epoch(1, 0)]
    group[3].hears(1, 600 if knows != "of a log that is the same" else 500, 600)
    group.start(3)
    group[1].kill()
    group[2].kill()
    await trio.sleep(LEASE_S)
    record = replace(group.state.record, leader=None)
    if knows == "in an earlier tenure":
        record = replace(record, epoch=2)
    elif knows == "what was overruled":
        record = replace(record, epoch=2, forced=2, in_sync=frozenset({2, 3}))
        group[3].engine.is_cut_off = True  # it knows nothing of the decision
    group.state.keep(record)
    group[2].restart()
    await trio.sleep(1)
    assert group.master is group[2]


async def test_others_that_do_not_answer_delay_an_election_by_little(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3)
    group[2].others.unreachable = group[3].others.unreachable = {1, 2, 3}
    group[1].kill()
    await trio.sleep(LEASE_S + 0.5)
    assert group.master in (group[2], group[3])


async def test_addresses_of_others_are_known_after_a_restart(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3)
    await trio.sleep(1)
    for member in group.members.values():
        member.kill()
    await trio.sleep(0.1)
    monkeypatch.setattr(Reachable, "addresses", {})
    group[2].restart()
    await trio.sleep(2 * LEASE_S)
    assert group.master is group[2]
    assert group[2].others.asked == [{2: "b1:10911", 4: "b3:10911"}]


async def test_a_forced_master_has_an_epoch_beyond_what_others_saw(group: Group) -> None:
    """They follow it then, and it does not refuse to campaign because of them."""
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3)
    copy = group.state.record
    group[3].kill()
    await group.leave(3)
    group[1].kill()
    await trio.sleep(2 * LEASE_S)
    assert group.master is group[2]
    group[2].kill()
    await trio.sleep(LEASE_S)
    group.state.keep(replace(copy, leader=None))
    group[2].restart()
    group[3].restart()
    await trio.sleep(1)
    await group[3].elector.hand_over(3, 0, force=True)
    assert group.state.record.epoch == group.state.record.forced == 3
    await trio.sleep(1)
    assert group[2].elector.current.master == Master("b3:10911", "b3:10912")
    group[3].kill()
    group[3].restart()
    await trio.sleep(2 * LEASE_S)
    assert group.master is group[3]


async def test_a_member_that_is_elected_while_another_asks_is_followed(group: Group) -> None:
    """What it saw of its own election is no reason to warn."""
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3)
    group[2].others.unreachable = {1}  # it waits
    group[1].kill()
    with capture_logs() as logged:
        await trio.sleep(LEASE_S + 1)
    assert group.master is group[3]
    assert "is the master of epoch 2" in group[2].elector.reason
    assert "not_campaigning" not in [entry["event"] for entry in logged]


async def test_a_master_writes_its_record_again_into_a_restored_engine(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3)
    copy = group.state.record
    await group.leave(3)
    now = group.state.record
    assert copy.in_sync == {1, 2, 3}
    group.state.keep(copy)
    await trio.sleep(LEASE_S / 2)
    assert group.state.record == now
    assert group.master is group[1]


async def test_a_master_whose_lease_has_ended_as_it_writes_its_record_again_is_a_slave(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine may say so at any request, not only when the lease is extended."""

    async def write(*_: GroupRecord) -> None:
        raise LeaseLost("held by another member")

    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3)
    copy = group.state.record
    await group.leave(3)
    monkeypatch.setattr(group[1].engine, "write", write)
    group.state.keep(copy)
    await trio.sleep(0.1)
    assert not group[1].leads


async def test_what_is_confirmed_is_known_after_a_kill_until_an_operator_decides_otherwise(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    await trio.sleep(2)
    group[1].kill()
    group[1].restart()
    assert group[1].confirmed() == 500
    group[2].kill()
    group[1].kill()
    await trio.sleep(2 * LEASE_S)
    await group[3].elector.hand_over(3, 0, force=True)
    group[1].restart()
    await trio.sleep(1)
    assert group.state.record.forced == group.state.record.epoch
    assert group[1].confirmed() == 0


async def test_what_was_confirmed_before_an_operator_overruled_it_is_not_confirmed_in_a_later_tenure(
    group: Group,
) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    await trio.sleep(2)
    group[1].kill()
    group[2].kill()
    await trio.sleep(2 * LEASE_S)
    await group[3].elector.hand_over(3, 0, force=True)
    group[1].restart()
    await trio.sleep(1)
    await group.copy_everything(1, 2, end=200)
    group[3].kill()
    while group[1].in_sync is None:
        await trio.sleep(0.1)
    assert group[1].in_sync.recorded >= {1, 2}
    assert group[1].in_sync.confirm == 0, "member 2 has not connected yet"


async def test_a_later_master_that_knows_less_takes_nothing_from_what_is_confirmed(group: Group) -> None:
    """A new master begins with what it knows to be confirmed, which may be less."""
    group[2].epochs = [Epoch(1, 0), Epoch(2, 600)]
    group[2].hears(1, 500, 600)
    group[2].hears(2, 300, 600)
    assert group[2].confirmed() == 500
    assert group[2].confirmed(400) == 400, "it has not more of its log"
    group.start(2)
    await trio.sleep(2)
    group[2].kill()
    group[2].restart()
    assert group[2].confirmed() == 500


async def test_what_is_confirmed_ends_where_the_log_has_a_later_epoch(group: Group) -> None:
    """All members may have lost what they had not synced, when the next master began its epoch."""
    group[2].hears(1, 500, 600)
    group[2].epochs = [Epoch(1, 0), Epoch(2, 450)]
    assert group[2].confirmed() == 450
    group[2].hears(2, 470, 490)
    assert group[2].confirmed() == 470


async def test_what_a_log_has_lost_is_not_confirmed_by_what_a_later_master_writes_there(group: Group) -> None:
    group[2].hears(1, 500, 600)
    group[2].hears(2, 300, 400)  # which begins its epoch at 450
    group[2].epochs = [Epoch(1, 0), Epoch(2, 450)]
    assert group[2].confirmed(490) == 400


async def test_a_new_master_remembers_what_the_one_before_has_confirmed(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    group[2].hears(1, 500, 500)
    group[1].kill()
    await trio.sleep(2 * LEASE_S)
    assert group[2].leads
    assert group[2].confirmed() == 500


async def test_what_is_confirmed_because_a_joining_member_has_gone_is_reported(group: Group) -> None:
    """Nothing else may happen in a quiet group, and consumers wait for it."""
    group.start()
    await trio.sleep(1)
    in_sync = group[1].in_sync
    assert in_sync is not None
    reported: list[int] = []
    assert group[1].leadership is not None
    group[1].leadership.on_set_change.append(lambda: reported.append(in_sync.confirm))
    in_sync.acknowledged(2, 0, trio.current_time())
    in_sync.own(500, 500)
    in_sync.acknowledged(2, 400, trio.current_time())
    await trio.sleep(0.15)
    in_sync.own(600, 600)
    assert in_sync.confirm == 500
    in_sync.disconnected(2, trio.current_time())
    await trio.sleep(0.15)
    assert in_sync.confirm == 600
    assert reported == [600]


async def test_an_operator_may_declare_that_the_masters_history_holds(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group[1].elector.hand_over(1, 0, force=True)
    assert (group.state.record.epoch, group.state.record.forced) == (1, 1)
    group[1].kill()
    await trio.sleep(0.1)
    group[1].restart()
    await trio.sleep(1)
    assert (group.state.record.epoch, group.state.record.forced) == (2, 1)


async def test_a_master_without_its_engine_serves_until_its_lease_ends_and_comes_back(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    tenure, fence = group[1].elector.current, group[1].elector.fence
    group.state.is_down = True
    down_at = trio.current_time()
    await group[1].elector.changed(tenure)
    assert LEASE_S * 0.6 <= trio.current_time() - down_at <= LEASE_S * 0.9 + 0.01
    assert fence.expiry() is not None
    assert group[1].elector.current.role is Role.SLAVE
    await trio.sleep(60)
    assert "no response" in group[1].elector.reason
    group.state.is_down = False
    await trio.sleep(LEASE_S)
    assert group.master is group[1]
    assert group.state.record.epoch == 2
    assert fence.expiry() is not None, "the fence of a tenure that ended stays"


async def test_a_short_failure_of_the_engine_changes_nothing(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    for _ in range(5):
        group.state.is_down = True
        await trio.sleep(4)
        group.state.is_down = False
        await trio.sleep(8)
    assert group.master is group[1]
    assert group.state.record.epoch == 1


async def test_never_two_masters_acknowledge(group: Group) -> None:
    """The master is cut off from the engine, whose answers are slow; another takes over after its fence."""
    for member in group.members.values():
        member.engine.delay_s = 0.4
    group.start()
    await trio.sleep(10)
    await group.copy_everything(2, 3, end=500)
    await trio.sleep(10)
    group[1].engine.is_cut_off = True
    for _ in range(3000):
        await trio.sleep(0.01)
        assert sum(member.acknowledges for member in group.members.values()) <= 1
    assert group.master in (group[2], group[3])
    group[1].engine.is_cut_off = False
    await trio.sleep(5)
    assert group[1].elector.current.master is not None


async def test_a_process_that_was_stopped_beyond_its_lease_acknowledges_nothing(group: Group) -> None:
    """The clock moves while no task of the member runs, as with SIGSTOP: the first question must be refused."""
    group.start(1)
    await trio.sleep(1)
    fence, clock = group[1].elector.fence, trio.current_time()
    assert fence.expiry() is None
    fence._clock = lambda: clock + LEASE_S
    assert "another broker may be the master" in (fence.expiry() or "")
    fence._clock = lambda: clock
    assert fence.expiry() is not None


async def test_a_lost_answer_to_the_campaign_is_found_out(group: Group) -> None:
    group[1].engine.loses_answers = 1
    group.start(1)
    await trio.sleep(2)
    assert group.master is group[1]
    assert group.state.record.epoch == 2, "the lease of epoch 1 is replaced"


async def test_a_lost_answer_to_a_change_of_the_set_is_found_out(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    group[1].engine.loses_answers = 1
    await group.copy_everything(2, end=100)
    await trio.sleep(1)
    assert group.master is group[1]
    assert group[1].in_sync is not None
    assert group[1].in_sync.recorded == group.state.record.in_sync == {1, 2}


# Hand-over


async def test_a_hand_over_loses_nothing_and_keeps_the_set(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3, end=500)
    master = group[1]
    assert master.in_sync is not None
    master.end = 600
    master.in_sync.own(600, 600)
    old = master.elector.fence

    async def catch_up() -> None:
        await trio.sleep(0.1)
        assert old.refusal() == "handing over to member 2"
        assert old.expiry() is None, "what was accepted is acknowledged still"
        assert master.in_sync is not None
        group[2].end = 600
        master.in_sync.acknowledged(2, 600, trio.current_time())

    group.nursery.start_soon(catch_up)
    started_at = trio.current_time()
    handed = await master.elector.hand_over(2, master.end)
    while not group[2].acknowledges:
        await trio.sleep(0.01)
    assert trio.current_time() - started_at < 1.0
    assert (handed.end, handed.kept) == (600, 600)
    assert old.expiry() == "handed over to member 2"
    await trio.sleep(0.5)
    assert group.state.record.epoch == 2
    assert group.state.record.in_sync == {1, 2}, "member 3 does not have everything"
    assert group[1].elector.current.master == Master("b2:10911", "b2:10912")


async def test_a_hand_over_to_a_member_that_does_not_catch_up_is_given_up(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    assert group[1].in_sync is not None
    group[1].in_sync.own(600, 600)
    with pytest.raises(HandOverRefused, match=r"it has it up to 500, the master up to 600"):
        await group[1].elector.hand_over(2, 600)
    assert group.master is group[1]
    assert group[1].elector.fence.refusal() is None


async def test_a_hand_over_after_one_that_was_refused_keeps_the_tenure_for_its_successor(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3, end=500)
    in_sync = group[1].in_sync
    assert in_sync is not None
    in_sync.own(600, 600)
    in_sync.acknowledged(3, 600, trio.current_time())
    master = group[1].elector.current
    seen: list[bool] = []

    async def prepare() -> None:
        await trio.sleep(0.1)
        seen.append(group[1].elector.current == master)

    async def refused() -> None:
        with pytest.raises(HandOverRefused, match="up to 500"):
            await group[1].elector.hand_over(2, 600)

    group[3].elector.before_taking_over(prepare)
    group.nursery.start_soon(refused)
    await trio.sleep(0.1)
    await group[1].elector.hand_over(3, 600)
    assert group.master is group[3]
    assert seen == [True]


async def test_a_hand_over_during_one_is_refused_and_does_not_end_the_tenure(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    master, old, in_sync = group[1].elector.current, group[1].elector, group[1].in_sync
    assert in_sync is not None
    in_sync.own(600, 600)
    seen: list[bool] = []

    async def prepare() -> None:
        await trio.sleep(0.2)
        seen.append(old.current == master)

    async def second() -> None:
        await trio.sleep(0.1)
        with pytest.raises(HandOverRefused, match="no longer the master"):
            await old.hand_over(2, 600)

    async def catch_up() -> None:
        await trio.sleep(0.2)
        in_sync.acknowledged(2, 600, trio.current_time())

    group[2].elector.before_taking_over(prepare)
    group.nursery.start_soon(second)
    group.nursery.start_soon(catch_up)
    await old.hand_over(2, 600)
    assert group.master is group[2]
    assert seen == [True]


async def test_a_hand_over_waits_for_changes_of_tables_that_are_not_answered(group: Group) -> None:
    """Else their outcome would be unknown, although the next master has them a moment later."""

    class Tables:
        is_waiting = True

        def may_join(self, _: int) -> bool:
            return True

        def is_late(self, _: int) -> bool:
            return False

    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    in_sync, old = group[1].in_sync, group[1].elector
    assert in_sync is not None
    in_sync.tables = tables = Tables()

    async def taken() -> None:
        await trio.sleep(0.2)
        assert old.fence.expiry() is None
        assert old.fence.refusal() is not None, "no more is accepted"
        tables.is_waiting = False

    group.nursery.start_soon(taken)
    await old.hand_over(2, 500)
    assert not tables.is_waiting
    assert group.master is group[2]
    await group.copy_everything(1, end=500)
    in_sync = group[2].in_sync
    assert in_sync is not None
    in_sync.tables = Tables()
    await group[2].elector.hand_over(1, 500)
    assert group.master is group[1], "it does not wait for ever"


async def test_a_hand_over_is_refused_if_the_member_loses_what_it_had(group: Group) -> None:
    """Member 3 has not answered for the last put, which the master waits for, and member 2 comes back with less."""
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3, end=500)
    in_sync = group[1].in_sync
    assert in_sync is not None
    in_sync.own(600, 600)
    in_sync.acknowledged(2, 600, trio.current_time())

    async def lose() -> None:
        await trio.sleep(0.1)
        in_sync.acknowledged(2, 550, trio.current_time())

    group.nursery.start_soon(lose)
    with pytest.raises(HandOverRefused, match="member 2 has lost the log from 550 on; the master has 600"):
        await group[1].elector.hand_over(2, 600)
    assert group.master is group[1]
    assert group[1].elector.fence.refusal() is None


async def test_a_hand_over_whose_record_was_replaced_does_not_claim_that_nothing_changed(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    real = group[1].engine.write

    async def write(seen: GroupRecord, new: GroupRecord) -> GroupRecord | None:
        group.state.keep(GroupRecord(7, frozenset({1, 2})))
        return await real(seen, new)

    group[1].engine.write = write  # type: ignore[method-assign]
    with pytest.raises(LeaseLost, match="another record"):
        await group[1].elector.hand_over(2, 500)
    assert not group[1].leads


async def test_a_successor_prepares_while_the_last_master_still_answers(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    fence, master = group[1].elector.fence, group[1].elector.current
    prepared: list[str | None] = []

    async def prepare() -> None:
        assert group.state.record.leader is None
        assert group[1].elector.current == master, "it answers as the master still"
        assert group[2].elector.current.master == Master("b1:10911", "b1:10912")
        prepared.append(fence.expiry())
        await trio.sleep(0.2)
        assert not group[2].leads

    group[2].elector.before_taking_over(prepare)
    await group[1].elector.hand_over(2, 500)
    assert group[2].leads, "the hand-over ends when the successor leads"
    assert prepared == ["handed over to member 2"]
    assert group[1].elector.current.master == Master("b2:10911", "b2:10912")

    async def never() -> None:
        await trio.sleep_forever()

    await group.copy_everything(1, end=500)
    group[1].elector.before_taking_over(never)
    handed_at = trio.current_time()
    await group[2].elector.hand_over(1, 500)
    assert group[1].leads
    assert trio.current_time() - handed_at < 1.0


async def test_a_log_that_was_opened_for_an_earlier_tenure_does_not_lead(group: Group) -> None:
    group.start(2)
    group.nursery.start_soon(group[1].elector.run)  # its log is opened by this test
    await trio.sleep(1)
    assert group[1].elector.current.epoch == 1
    await group[1].elector.resign()
    await trio.sleep(1)
    assert group[1].elector.current.epoch == 2
    with pytest.raises(LeaseLost):
        group[1].elector.lead(1, [], 500)
    leadership = group[1].elector.lead(2, [], 500)
    assert leadership.fence.expiry() is None
    assert leadership.in_sync.confirm == 500


async def test_a_member_that_is_elected_and_cannot_lead_leaves_it_to_another(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    await group[1].elector.give_up(1, "the disk is full")
    await trio.sleep(0.5)
    assert group.master is group[2]
    group[2].kill()
    await group[2].elector.resign()
    await trio.sleep(2 * LEASE_S)
    assert not group[1].leads, "the set of the new master is its own"


async def test_a_lone_member_that_cannot_lead_tries_again(group: Group) -> None:
    group.start(1)
    await trio.sleep(1)
    await group[1].elector.give_up(1, "the disk is full")
    await trio.sleep(LEASE_S - 1)
    assert group[1].elector.reason == "the disk is full"
    await trio.sleep(2)
    assert group.master is group[1]


async def test_a_hand_over_to_a_member_out_of_sync_names_what_is_lost(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    assert group[1].in_sync is not None
    group[1].in_sync.acknowledged(3, 300, trio.current_time())
    with pytest.raises(HandOverRefused, match=r"200 bytes from offset 300 on are lost; in sync are \[1, 2\]"):
        await group[1].elector.hand_over(3, 500)
    handed = await group[1].elector.hand_over(3, 500, force=True)
    assert (handed.end, handed.kept) == (500, 300)
    await trio.sleep(1)
    assert group.master is group[3]
    assert group.state.record.in_sync == {3}


async def test_a_hand_over_to_the_master_changes_nothing(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    handed = await group[1].elector.hand_over(1, 500)
    assert (handed.end, handed.kept) == (500, 500)
    assert group.state.record.epoch == 1


async def test_a_hand_over_to_an_unknown_member_is_refused(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    with pytest.raises(HandOverRefused, match="member 4 does not copy from this master"):
        await group[1].elector.hand_over(4, 0, force=True)
    assert group.master is group[1]


async def test_a_leaving_master_hands_over_to_the_member_that_has_most(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3, end=500)
    assert group[1].in_sync is not None
    group[1].end = 600
    group[1].in_sync.own(600, 600)
    group[1].in_sync.acknowledged(3, 600, trio.current_time())
    await group[1].elector.leave()
    await trio.sleep(0.5)
    assert group.master is group[3]


async def test_a_slave_names_the_master_to_ask(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    with pytest.raises(HandOverRefused) as refused:
        await group[2].elector.hand_over(3, 0)
    assert refused.value.master == "b1:10911"


async def test_the_successor_is_replaced_if_it_does_not_come(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3, end=500)
    group[2].kill()
    handed_at = trio.current_time()
    await group[1].elector.hand_over(2, 500)
    await trio.sleep(LEASE_S - 1)
    assert group.state.record.leader is None
    await trio.sleep(2)
    assert group.master in (group[1], group[3])
    assert trio.current_time() - handed_at < LEASE_S + 3


async def test_a_stopping_master_gives_its_lease_back(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    await group[1].elector.resign()
    group[1].kill()
    await trio.sleep(1)
    assert group.master is group[2]


async def test_an_unfit_member_does_not_campaign_until_it_is_fit(group: Group) -> None:
    await group[1].elector.set_unfit("its log is not open", may_lead=False)
    group.start(1)
    await trio.sleep(30)
    assert group[1].elector.reason == "its log is not open"
    await group[1].elector.set_unfit(None)
    await trio.sleep(0.1)
    assert group.master is group[1]


async def test_an_unfit_master_makes_room_for_a_member_in_sync(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group[1].elector.set_unfit("a sync has failed")
    await trio.sleep(1)
    assert group.master is group[1], "no other member is in sync, and this one serves pulls still"
    await group[1].elector.set_unfit(None)
    await group.copy_everything(2, end=500)
    await group[1].elector.set_unfit("a sync has failed")
    await trio.sleep(1)
    assert group.master is group[2]
    group[2].kill()
    await trio.sleep(2 * LEASE_S)
    assert not group[1].leads


async def test_an_unfit_master_tries_again_until_another_can_lead(group: Group) -> None:
    """The broker repeats the reason; at first no other member is in sync, then it is not fit, then it is behind."""
    group.start()
    await trio.sleep(1)
    await group[1].elector.set_unfit("the disk is full")
    await group.copy_everything(2, end=500)
    in_sync = group[1].in_sync
    assert in_sync is not None
    in_sync.fitness(2, False)
    await group[1].elector.set_unfit("the disk is full")
    await trio.sleep(1)
    assert group.master is group[1], "the other could not store anything either"
    in_sync.fitness(2, True)
    in_sync.acknowledged(2, 500, trio.current_time())
    await group[1].elector.set_unfit("the disk is full")
    await trio.sleep(1)
    assert group.master is group[2]
    assert group.state.record.in_sync == {2}


async def test_an_unfit_master_does_not_wait_for_a_member_that_gets_nothing_more(group: Group) -> None:
    """With a broken disk it cannot send the rest of its log; what is confirmed, the other has."""
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    assert group[1].in_sync is not None
    group[1].in_sync.own(600, 500)
    await group[1].elector.set_unfit("a sync has failed")
    await trio.sleep(1)
    assert group.master is group[2]
    assert group.state.record.in_sync == {2}


async def test_an_unfit_master_names_the_set_as_it_is_when_it_gives_the_lease_back(group: Group) -> None:
    """While it waits to do so, a member leaves the set, and messages that this one lacks are acknowledged."""
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3, end=500)
    in_sync = group[1].in_sync
    assert in_sync is not None
    in_sync.own(600, 600)
    in_sync.acknowledged(2, 550, trio.current_time())
    in_sync.acknowledged(3, 540, trio.current_time())

    async def lose_the_successor() -> None:
        await trio.sleep(0.1)
        async with group[1].elector._acting:  # once the hand-over is refused, as a slow reading of the record
            in_sync.disconnected(2, trio.current_time() - LEASE_S)
            in_sync.acknowledged(3, 600, trio.current_time())
            await trio.sleep(1)

    group.nursery.start_soon(lose_the_successor)
    await group[1].elector.set_unfit("the disk is full")
    assert in_sync.confirm == 600
    assert not group[1].leads
    await trio.sleep(1)
    assert group.state.record.in_sync == {3}
    assert group.master is group[3]


async def test_an_unfit_master_stays_if_its_successor_has_gone(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, end=500)
    in_sync = group[1].in_sync
    assert in_sync is not None
    in_sync.own(600, 600)

    async def lose_the_successor() -> None:
        await trio.sleep(0.1)
        group[2].kill()
        in_sync.disconnected(2, trio.current_time())

    group.nursery.start_soon(lose_the_successor)
    await group[1].elector.set_unfit("the disk is full")
    await trio.sleep(2 * LEASE_S)
    assert group.master is group[1]
    assert group.state.record.in_sync == {1}
    assert in_sync.confirm == 600


async def test_an_unfit_member_leads_if_no_other_does(group: Group) -> None:
    group.start()
    await trio.sleep(1)
    await group.copy_everything(2, 3, end=500)
    for number in (2, 3):
        await group[number].elector.set_unfit("the disk is full")
    group[1].kill()
    await trio.sleep(LEASE_S + 1)
    assert group.state.record.leader is None
    assert group[2].elector.reason == "the disk is full"
    await trio.sleep(LEASE_S)
    assert group.master in (group[2], group[3])
