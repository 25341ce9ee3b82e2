"""The elector of one member: follows the engine's record, campaigns, and decides the broker's role.

`Candidacy` says whether this member may campaign, also by what `OtherMembers` answer. What it wins is a `Mastership`,
which ends when the lease does, and with it the tenure as master. All waits and comparisons use clocks that never jump.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import trio
from typing_extensions import override

from reput_broker.config.errors import ConfigError, ConfigProblem
from reput_broker.config.model import BrokerConfig
from reput_broker.ha.election.candidacy import Candidacy, OtherMembers
from reput_broker.ha.election.engine import Engine, EngineUnavailable, GroupRecord, Leader, LeaseLost, Terms
from reput_broker.ha.election.in_sync_set import InSyncSet
from reput_broker.ha.election.mastership import PAUSE_S, HandOver, HandOverRefused, Mastership, warn_unavailable
from reput_broker.ha.election.member_file import MemberFile
from reput_broker.ha.epochs import EpochFile
from reput_broker.put.put_lock import Fence, boot_time
from reput_broker.store.base.errors import directory_refusals
from reput_broker.tenure.core import Master, Role, Tenure, TenureSource
from reput_protocol.commands.replica import ReplicaState
from reput_protocol.commands.topic import MASTER_ID
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_READS_PER_LEASE = 3
"""The record is read so often even if the engine reports no change, because a watch may end without notice."""
_LOOK_S = 0.005
_PREPARE_S = 0.5
"""Longest time for which a successor fetches the tables from the last master, in seconds."""
_ASK_S = 0.3
"""Longest time for which a candidate waits for what the other members know, in seconds."""
_SAVE_S = 1.0
"""Interval at which the confirm offset is kept, for a member that is killed."""
_PASS_S = 1.0
"""How long a master that has handed over serves reads and tables until the successor leads."""
NOT_OPEN = "this broker is starting: its log is not open yet"
"""A broker that recovers its log for minutes must not be the master meanwhile."""


def slave_id(member: int) -> int:
    """Return the id under which a member is announced as a slave: 0 stands for the master."""
    return member + 1


class Leadership(NamedTuple):
    """What a tenure as elected master has."""

    fence: Fence
    in_sync: InSyncSet
    on_set_change: list[Callable[[], None]]
    """See `Mastership.on_change`."""
    now: Callable[[], float]
    """The clock of fence and in-sync set, in seconds."""


class Elector(TenureSource):
    """Campaigns for one member of a group, as long as `run` runs.

    Args:
        engine: elects. `close` closes it.
        me: this member, as the others reach it.
        role: of a master.
        file: the identity of this member's directory.
        log_epoch: returns the last epoch in this member's log; called in a thread.
        clock: seconds of a clock that never jumps.
    """

    def __init__(
        self,
        engine: Engine,
        me: Leader,
        role: Role,
        file: MemberFile,
        terms: Terms,
        log_epoch: Callable[[], int],
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._me = me
        super().__init__(self._as_slave(None))
        self._engine = engine
        self._role = role
        self._file = file
        self._terms = terms
        self._lease_s = terms.lease_s
        self._log_epoch = log_epoch
        self._clock = clock
        self._candidacy = Candidacy(me, file, terms, engine.name, clock)
        self.others: OtherMembers | None = None
        """The other members, which are asked before this one campaigns."""
        self._seen = GroupRecord()
        self._last_leader: int | None = None
        self._mastership: Mastership | None = None
        self._acting = trio.Lock()
        self._reason = "the engine has not responded yet"
        self._waiting = trio.CancelScope()
        self._passes_on = False
        self._prepare: Callable[[], Awaitable[None]] | None = None

    # The role

    @property
    def member(self) -> int:
        """This member's number."""
        return self._me.member

    @property
    def fence(self) -> Fence:
        """The fence of the mastership; one that refuses everything without a mastership."""
        if self._mastership is not None:
            return self._mastership.fence
        fence = Fence(self._clock)
        fence.end(self._reason)
        return fence

    @property
    def reason(self) -> str:
        """Why this member is not the master; empty if it is."""
        return "" if self._mastership is not None else self._reason

    def before_taking_over(self, call: Callable[[], Awaitable[None]]) -> None:
        """Await this, for a limited time, before this member takes over from a master that has handed over to it, and
        that still answers. It holds until this member leads.
        """
        self._prepare = call

    def status(self) -> dict[str, Any]:
        """Return the facts for the status page."""
        mastership, leader = self._mastership, self._seen.leader
        in_sync = None if mastership is None else mastership.in_sync
        record = self._seen if mastership is None else mastership.record
        return {
            "engine": self._engine.name,
            "member": self._me.member,
            "epoch": record.epoch,
            "in_sync": sorted(record.in_sync),
            "master": self._me.address if mastership else None if leader is None else leader.address,
            "lease_left_s": None if mastership is None else round(mastership.fence.left_s, 3),
            "confirm_offset": None if in_sync is None else in_sync.confirm,
            "unfit": self._candidacy.unfit,
            "reason": self.reason,
        }

    # The engine's record

    async def run(self) -> None:
        """Campaign, follow, keep the lease, and record changes of the in-sync set, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_masterships)
            nursery.start_soon(self._save_confirmed)
            await self._follow_record()

    async def _run_masterships(self) -> None:
        while True:
            if self._mastership is not None:
                await self._mastership.run()
            else:
                await self.changed(self.current)

    async def _follow_record(self) -> None:
        while True:
            try:
                async with self._acting:
                    record = await self._engine.read()
                    await self._act_on(record)
                wait_s = self._candidacy.wait_s(self._lease_s / _READS_PER_LEASE)
                with trio.move_on_after(wait_s) as self._waiting:
                    await self._engine.changed(record)
                    await trio.sleep(_LOOK_S)  # an engine that reports a change at once, again and again
            except EngineUnavailable as error:
                self._note_unavailable(error)
                await trio.sleep(PAUSE_S)

    async def _act_on(self, record: GroupRecord) -> None:
        mastership = self._mastership
        if mastership is not None:
            if record.leader == self._me and record.epoch == mastership.record.epoch:
                if record.is_older_than(mastership.record):
                    await mastership.put_back()
                await self._note_record(record)
                return
            if record.epoch < mastership.record.epoch and record.leader is not None:
                return  # read before this member became master
            mastership.end(f"{self._engine.name} has removed this member as master of epoch {mastership.record.epoch}")
        self._seen = record
        if record.leader is not None:
            self._last_leader = record.leader.member
        await self._note_record(record)
        if record.leader is not None and record.leader.member != self._me.member:
            await self._follow(record, record.leader)
            return
        if record.leader is None and record.successor == self._me.member and self.current.master is not None:
            await self._prepare_to_lead()
        if not self._passes_on:
            self._set(self._as_slave(None))
        reason = self._candidacy.why_not(record)
        if reason is None:
            own = None if self.others is None else self.others.own_log()
            reason = self._candidacy.why_behind(record, own, await self._ask())
            if reason is None:
                await self._campaign(record, record.in_sync | {self._me.member})
                return
            if await self._engine.read() != record:
                return  # one of them was elected meanwhile
        if reason != self._reason:
            self._reason = reason
            log.warning("not_campaigning", reason=reason, epoch=record.epoch, in_sync=sorted(record.in_sync))

    async def _ask(self) -> list[ReplicaState]:
        """Return what the other members know that can be reached in a short time."""
        if self.others is None:
            return []
        addresses = {**self._file.seen.members, **self.others.addresses}
        return await self.others.ask(addresses, min(_ASK_S, self._lease_s / 4))

    async def _prepare_to_lead(self) -> None:
        if self._prepare is not None:
            with trio.move_on_after(min(_PREPARE_S, self._lease_s / 4)) as scope:
                await self._prepare()
            if scope.cancelled_caught:
                log.warning(
                    "tables_not_complete",
                    hint="offsets, topics and groups may be as they were about a second before the hand-over",
                )

    async def _follow(self, record: GroupRecord, leader: Leader) -> None:
        self._candidacy.filled()
        me = self._me.member
        # A new disk under the number of a member in sync gets its identity only when it is no longer counted as such.
        if self._file.epoch is not None or me not in record.in_sync:
            await self._note_epoch(record.epoch)
        tenure = self._as_slave(Master(leader.address, leader.ha_address))
        if tenure != self.current:
            log.info("master_elected", member=leader.member, address=leader.address, epoch=record.epoch)
        self._reason = f"member {leader.member} at {leader.address} is the master of epoch {record.epoch}"
        self._set(tenure)

    async def _campaign(self, record: GroupRecord, in_sync: frozenset[int], *, force: bool = False) -> bool:
        if not await self._note_epoch(record.epoch):
            return False
        try:
            log_epoch = await trio.to_thread.run_sync(self._log_epoch)
        except (OSError, ReputError) as error:
            self._candidacy.failed(f"the epochs of this member's log cannot be read: {error}")
            log.error("log_epochs_not_read", detail=str(error), hint="this member tries again after a lease")
            return False
        # Only what an operator decides can be behind what others know. They are to follow it.
        others = await self._ask() if force else []
        known = [number for other in others for number, _ in [*other.epochs, other.seen_record or (0, 0)]]
        epoch = max(record.epoch, self._file.epoch or 0, log_epoch, *known) + 1
        sent_at = self._clock()
        forced = epoch if force else record.forced
        taken = await self._engine.take(record, GroupRecord(epoch, in_sync, leader=self._me, forced=forced))
        if taken is None:
            return False
        await self._note_epoch(epoch)
        self._candidacy.filled()
        is_planned = record.successor == self._me.member
        mastership = Mastership(
            self._engine,
            taken,
            self._terms,
            sent_at=sent_at,
            is_planned=is_planned,
            gone=None if is_planned else self._last_leader,
            clock=self._clock,
            on_end=self._ended,
        )
        self._mastership = mastership
        self._seen = taken
        log.info("elected", epoch=epoch, member=self._me.member, in_sync=sorted(in_sync), engine=self._engine.name)
        self._set(Tenure(self._role, MASTER_ID, epoch))
        return True

    # What is known to be confirmed

    @property
    @override
    def seen_record(self) -> tuple[int, int]:
        """Epoch and version of the last record that this member has seen or begun."""
        return self._file.seen_record

    @override
    def known_confirmed(self, epochs: Sequence[tuple[int, int]], end: int) -> tuple[int, int]:
        """Return an epoch, and up to which offset its master has confirmed this log; see `confirmed`."""
        return self._file.seen.confirmed[0], self.confirmed(epochs, end)

    @override
    def confirmed(self, epochs: Sequence[tuple[int, int]], end: int) -> int:
        """Return the log offset below which a log must not be cut, unless an operator has decided so since; 0 if none
        is known.

        Args:
            epochs: of the log. One that is later than what is confirmed, and begins before it, holds from there on: all
                members had lost the rest.
            end: of the log.
        """
        epoch, offset = self._file.seen.confirmed
        if epoch < self._seen.forced:
            return 0
        return min(offset, end, *(start for number, start in epochs if number > epoch))

    @override
    def note_confirmed(self, epoch: int, offset: int, epochs: Sequence[tuple[int, int]], end: int) -> None:
        """Note that all before an offset is confirmed, as a master of that epoch says whose history is this log's.

        A later master may begin with less than was confirmed before: the larger offset counts.

        Args:
            epochs, end: of this log; see `confirmed`.
        """
        self._file.seen.note_confirmed(epoch, max(min(offset, end), self.confirmed(epochs, end)))

    def _note_own_confirmed(self) -> None:
        mastership = self._mastership
        if mastership is not None and mastership.in_sync is not None:
            self._file.seen.note_confirmed(mastership.record.epoch, mastership.in_sync.confirm)

    async def _save_confirmed(self) -> None:
        while True:
            await trio.sleep(_SAVE_S)
            self._note_own_confirmed()
            await self._save_seen()

    async def _note_record(self, record: GroupRecord) -> None:
        if self._file.seen.note_record(record.epoch, record.version):
            await self._save_seen()

    async def _save_seen(self) -> None:
        if self.others is not None:
            self._file.seen.note_members(self.others.addresses)
        try:
            await trio.to_thread.run_sync(self._file.seen.save)
        except (OSError, ReputError) as error:
            log.error("election_file_not_written", detail=str(error), hint="check the data directory")

    async def _note_epoch(self, epoch: int) -> bool:
        try:
            await trio.to_thread.run_sync(self._file.note, epoch)
        except (OSError, ReputError) as error:
            log.error("election_file_not_written", detail=str(error), hint="check the data directory")
            return False
        return True

    def _ended(self, mastership: Mastership, reason: str, is_wanted: bool) -> None:
        """The broker is a slave without a master until the record names one; after a hand-over, only then."""
        if mastership is not self._mastership:
            return
        self._note_own_confirmed()
        self._mastership = None
        self._seen = replace(mastership.record, leader=None)
        self._reason = reason
        if not (self._passes_on and is_wanted):
            self._set(self._as_slave(None))

    # Mastership

    def lead(self, epoch: int, epochs: Sequence[tuple[int, int]], start: int) -> Leadership:
        """Begin to lead with an open log, before anything is served.

        After a failover the set stays, but for the master before. Its members have what was confirmed; all of this log
        is confirmed once those that connect soon have it, and the others have left. So another of them can take over
        if this one fails. After a hand-over all of the set have the whole log.

        Args:
            epoch: of the mastership for which the log was opened.
            epochs, start: of the log: its epochs and its end.

        Raises:
            LeaseLost: the mastership has ended.
        """
        mastership = self._mastership
        if mastership is None or mastership.record.epoch != epoch:
            raise LeaseLost(self.reason or f"the mastership of epoch {epoch} has ended, and another has begun")
        in_sync = mastership.lead(start, self.confirmed(epochs, start))
        self._note_own_confirmed()
        self._prepare = None
        return Leadership(mastership.fence, in_sync, mastership.on_change, self._clock)

    async def hand_over(self, member: int, end: int, *, force: bool = False) -> HandOver:
        """Make another member the master, without losing a message, and become a slave.

        Accepts nothing more, waits until the member has the whole log, and gives the lease back. Returns once the
        member leads, or after a second.

        Args:
            member: the next master.
            end: the end of this broker's log.
            force: even if the member is not in sync; what it does not have is lost then. Without a master, this member
                itself can be made the master by force.

        Raises:
            HandOverRefused: nothing has changed.
            LeaseLost: this broker is no longer the master, and the member was not named as its successor.
            EngineUnavailable: the engine did not answer; whether the member takes over is not known.
        """
        mastership = self._mastership
        if mastership is None:
            async with self._acting:
                return await self._take_over(member, end, force=force)
        if member == self._me.member:
            if force:
                await mastership.force()
            return HandOver(member, end, end)  # it is the master already
        return await self._pass_on(mastership, member, force=force)

    async def _pass_on(
        self, mastership: Mastership, member: int, *, force: bool = False, stays: bool = True
    ) -> HandOver:
        """Hand over. This broker serves reads and tables until the successor leads."""
        with ExitStack() as passing:
            async with self._acting:
                if mastership.is_over:
                    raise HandOverRefused("this broker is no longer the master; ask again shortly")
                tenure = passing.enter_context(self._passing_on(mastership))
                made = await mastership.hand_over(member, force=force, stays=stays)
            with trio.move_on_after(min(_PASS_S, self._lease_s / 2)):
                await self.changed(tenure)
            return made

    @contextmanager
    def _passing_on(self, mastership: Mastership) -> Iterator[Tenure]:
        """Keep the tenure, which is returned, although the mastership ends within the context."""
        tenure, self._passes_on = self.current, True
        try:
            yield tenure
        finally:
            self._passes_on = False
            if mastership.is_over and self.current == tenure:
                self._set(self._as_slave(None))

    async def _take_over(self, member: int, end: int, *, force: bool) -> HandOver:
        """Make this member the master of a group that has none, although it is not in sync."""
        record = await self._engine.read()
        if record.leader is not None and record.leader != self._me:
            raise HandOverRefused(f"this broker is not the master; {self._reason}", record.leader.address)
        if member != self._me.member:
            raise HandOverRefused(
                f"the group has no master now; only member {member} itself can be made the master, so send this to it"
            )
        if not force:
            raise HandOverRefused(
                f"the group has no master, and this member does not campaign: {self._reason}. Forced, it becomes the "
                f"master with its log up to {end}, and what only members {sorted(record.in_sync)} have beyond is lost"
            )
        if not await self._campaign(record, frozenset({member}), force=True):
            raise HandOverRefused(
                "another member has become the master in this moment, or the files of this one cannot be used: see "
                "its log"
            )
        log.warning("promoted_by_force", member=member, end=end, in_sync_before=sorted(record.in_sync))
        return HandOver(member, end, end)

    # Stopping and trouble

    async def leave(self) -> None:
        """Hand over, because the broker stops, to the fit member in sync that has the most of the log, if there is
        one.
        """
        mastership = self._mastership
        member = None if mastership is None else mastership.successor()
        if mastership is not None and member is not None:
            with suppress(HandOverRefused, EngineUnavailable, LeaseLost):
                await self._pass_on(mastership, member)

    async def resign(self) -> None:
        """Give the lease back, with the log closed; any member of the in-sync set may take over at once."""
        mastership = self._mastership
        if mastership is not None:
            async with self._acting:
                await mastership.give_back("the broker stops", is_wanted=True)

    async def give_up(self, epoch: int, reason: str) -> None:
        """Give the lease back, because the log could not be opened for the mastership; another member may take
        over at once, this one after the length of a lease.

        Args:
            epoch: of that mastership.
        """
        self._candidacy.failed(reason)
        mastership = self._mastership
        if mastership is not None and mastership.record.epoch == epoch:
            async with self._acting:
                await mastership.give_back(reason, is_wanted=False)

    async def close(self) -> None:
        """Close the connections to the engine, and keep what is known to be confirmed."""
        await self._save_seen()
        await self._engine.close()

    async def set_unfit(self, reason: str | None, *, may_lead: bool = True) -> None:
        """Have another member lead, for a reason such as a full disk; None: this one is fit.

        A master hands over if another member in sync is connected and fit; called again, it tries again. If that
        member does not get the rest of the log, the lease is given back, as long as such a member is there.

        Args:
            may_lead: whether this member leads if no other does for the length of a lease.
        """
        if reason != self._candidacy.unfit:
            self._candidacy.set_unfit(reason, may_lead=may_lead)
            self._waiting.cancel()  # campaign at once
        mastership = self._mastership
        member = None if mastership is None else mastership.successor()
        if reason is None or mastership is None or member is None or self._passes_on:
            return
        log.warning("master_unfit_handover", reason=reason, member=member)
        with suppress(EngineUnavailable, LeaseLost):
            try:
                await self._pass_on(mastership, member, stays=False)
            except HandOverRefused:
                async with self._acting:
                    await mastership.give_back(reason, is_wanted=False, stays=False)

    def _as_slave(self, master: Master | None) -> Tenure:
        return Tenure(Role.SLAVE, slave_id(self._me.member), master=master)

    def _note_unavailable(self, error: EngineUnavailable) -> None:
        warn_unavailable(self._engine, error)
        if self._mastership is None and self._seen.leader is None:
            self._reason = f"{self._engine.name} does not respond: {error.reason}"


def make_elector(config: BrokerConfig, address: str, ha_address: str) -> Elector:
    """Return the elector of this broker. Blocks.

    Args:
        address: where clients and other members reach this broker, `host:port`.
        ha_address: where other members copy its log, `host:port`.

    Raises:
        MemberFileWrong: the data directory is that of another member.
        ConfigError: httpx is not installed.
        EngineUnavailable: Kubernetes elects, and this process does not run in a pod.
        OSError, ssl.SSLError: a file of the configuration cannot be read.
    """
    election = config.election
    epochs = config.data_dir / "epochFileCheckpoint"

    def log_epoch() -> int:
        file = EpochFile(epochs)
        file.load()
        return file.last

    try:
        engine = _make_engine(config)
    except ModuleNotFoundError as missing:
        if missing.name != "httpx":
            raise
        key = "election.etcd" if config.election.etcd else "election.kubernetes_namespace"
        text = "needs httpx, which is not installed (the extra `etcd` of reput brings it): pip install httpx"
        raise ConfigError([ConfigProblem(key, config.origins.get(key, "code"), text)]) from missing
    with directory_refusals(config.data_dir):
        file = MemberFile(
            config.data_dir / "config" / "election.json",
            cluster=config.cluster,
            broker_name=config.broker_name,
            member=config.broker_id,
        )
    return Elector(
        engine,
        Leader(config.broker_id, address, ha_address),
        Role(config.ha.role),
        file,
        Terms(election.lease, election.first_master, election.in_sync_timeout, config.ha.max_gap_not_in_sync),
        log_epoch,
    )


def _make_engine(config: BrokerConfig) -> Engine:
    # Imported here, because httpx takes a tenth of a second that a broker without an election need not wait.
    election = config.election
    if election.kubernetes_namespace:
        from reput_broker.ha.election.kubernetes import KubernetesEngine

        return KubernetesEngine(
            election.kubernetes_namespace,
            cluster=config.cluster,
            broker_name=config.broker_name,
            lease_s=election.lease,
            clock=boot_time,
        )
    from reput_broker.ha.election.endpoints import tls_context
    from reput_broker.ha.election.etcd import EtcdEngine

    def path(text: str) -> Path | None:
        return Path(text) if text else None

    tls = None
    if any(address.startswith("https:") for address in election.etcd):
        tls = tls_context(path(election.etcd_ca), path(election.etcd_cert), path(election.etcd_key))
    password = ""
    if election.etcd_password_file:
        password = Path(election.etcd_password_file).read_text().strip()
    return EtcdEngine(
        election.etcd,
        cluster=config.cluster,
        broker_name=config.broker_name,
        lease_s=election.lease,
        user=election.etcd_user,
        password=password,
        tls=tls,
    )
