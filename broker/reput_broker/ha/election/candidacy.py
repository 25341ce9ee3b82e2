"""Which member may campaign for being the master, and when.

Only a member of the recorded in-sync set may, because it has every confirmed message. The first master of a group is
the member that the configuration names. A member that the last master handed over to has the length of a lease for
itself, and an unfit member waits as long for a fit one.

The record may be older than the group, because the engine was restored from a copy. So it counts what this member has
seen, and what the others answer that it can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import trio

from reput_broker.config.model import BrokerConfig
from reput_broker.ha.election.engine import GroupRecord, Leader, Terms
from reput_broker.ha.election.member_file import MemberFile
from reput_broker.ha.epochs import OwnLog, lacks
from reput_broker.ha.master_proof import MasterClient
from reput_broker.namesrv.members import GroupMembers
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.replica import QueryReplicaStateHeader, ReplicaState
from reput_protocol.errors import ReputError
from reput_protocol.wire.header import HeaderType

_LOOK_S = 0.005
_REMEDY = "decide which member has the longest log, and let it run `reput broker promote NUMBER --force`"


class Candidacy:
    """The rules for one member.

    Args:
        me: this member.
        file: the identity of its directory.
        engine: the engine's name.
        clock: seconds of a clock that never jumps.
    """

    def __init__(self, me: Leader, file: MemberFile, terms: Terms, engine: str, clock: Callable[[], float]) -> None:
        self._me = me
        self._file = file
        self._first_master = terms.first_master
        self._lease_s = terms.lease_s
        self._engine = engine
        self._clock = clock
        self._vacant_since: tuple[int, float] | None = None
        self._unfit: str | None = None
        self._may_lead_unfit = True
        self._failed: tuple[str, float] | None = None

    @property
    def unfit(self) -> str | None:
        """Why another member should be the master rather than this one; None if it is fit."""
        return self._unfit

    def set_unfit(self, reason: str | None, *, may_lead: bool) -> None:
        """Note why this member is unfit, and whether it may lead if no other does; None: it is fit."""
        self._unfit, self._may_lead_unfit = reason, may_lead

    def failed(self, reason: str) -> None:
        """Note that this member was elected and could not lead: it does not try again for the length of a lease."""
        self._failed = (reason, self._clock() + self._lease_s)

    def filled(self) -> None:
        """Note that the group has a master."""
        self._vacant_since = None

    def why_not(self, record: GroupRecord) -> str | None:
        """Return why this member may not campaign now, or None. The record names no master, or this member."""
        me, seen = self._me.member, self._file.epoch
        if record.leader is not None and record.leader != self._me:
            return (
                f"another broker, at {record.leader.address}, is the master under this broker's number {me}; "
                "give each replica of the group its own broker_id"
            )
        if self._unfit is not None and not self._may_lead_unfit:
            return self._unfit
        if self._failed is not None and self._clock() < self._failed[1]:
            return self._failed[0]
        if (record.epoch, record.version) < self._file.seen_record:
            return self._engine_lost(record, "this member", self._file.seen_record)
        if record.epoch == 0:
            if me == self._first_master:
                return None
            return (
                f"{self._engine} knows nothing of this group yet; member {self._first_master} "
                "(election.first_master) creates it"
            )
        if me not in record.in_sync:
            return f"this member is not in sync; only members {sorted(record.in_sync)} have every confirmed message"
        if seen is None:
            return (
                f"member {me} is recorded as in sync, but this data directory has never been that member's (no "
                "config/election.json): a new disk has none of the messages"
            )
        return self._why_wait(record)

    def why_behind(self, record: GroupRecord, own: OwnLog | None, others: Iterable[ReplicaState]) -> str | None:
        """Return why this member may not campaign because of what other members know, or None.

        That is a later record, or confirmed messages which its log lacks. What a member has confirmed that is not in
        the set, and in an earlier tenure than the last, does not count: the last master has begun without it.

        Args:
            own: this member's log; None while it is not open.
        """
        for other in others:
            seen = other.seen_record or (0, 0)
            if seen > (record.epoch, record.version):
                return self._engine_lost(record, f"member {other.member}", seen)
            epoch, confirmed = other.known_confirmed or (0, 0)
            is_old = epoch < record.epoch and other.member not in record.in_sync
            if own is None or is_old or epoch < record.forced:
                continue
            agreed = lacks(own, other)
            if agreed is not None:
                return (
                    f"member {other.member} knows all up to offset {confirmed} to be confirmed, and has the same log "
                    f"as this one up to {agreed} only: this member has lost messages, or {self._engine} was restored "
                    f"from an older copy; {_REMEDY}"
                )
        return None

    def _engine_lost(self, record: GroupRecord, who: str, seen: tuple[int, int]) -> str:
        return (
            f"{self._engine} has epoch {record.epoch}, version {record.version} of this group, but {who} saw epoch "
            f"{seen[0]}, version {seen[1]}: the engine has lost its state; {_REMEDY}"
        )

    def _why_wait(self, record: GroupRecord) -> str | None:
        if self._vacant_since is None or self._vacant_since[0] != record.epoch:
            self._vacant_since = (record.epoch, self._clock())
        if self._clock() >= self._vacant_since[1] + self._lease_s:
            return None
        if record.successor not in (None, self._me.member):
            return f"the last master has handed over to member {record.successor}"
        return self._unfit

    def wait_s(self, longest_s: float) -> float:
        """Return how long to wait before `why_not` may answer otherwise about the same record; at most `longest_s`."""
        now = self._clock()
        ends = [longest_s]
        if self._vacant_since is not None:
            ends.append(self._vacant_since[1] + self._lease_s - now)
        if self._failed is not None:
            ends.append(self._failed[1] - now)
        return max(_LOOK_S, min(end for end in ends if end > 0))


@dataclass(eq=False, repr=False)
class OtherMembers:
    """Asks the other members of a group what they know, before this one campaigns.

    An engine that was restored from an older copy may name as in sync a member that was away when it left the set. That
    one has seen nothing of it; the others have.

    Args:
        members: where they are.
        own_log: returns this member's log, to be compared with theirs; None while it is not open.
    """

    _config: BrokerConfig
    _members: GroupMembers
    own_log: Callable[[], OwnLog | None]

    @property
    def addresses(self) -> dict[int, str]:
        """Where they are, by the id under which they are announced as slaves, as far as this run has learned it."""
        return {member.slave_id: member.address for member in self._members.others()}

    async def ask(self, addresses: Mapping[int, str], within_s: float) -> list[ReplicaState]:
        """Return the answers of those that answer in time, by member. All are asked at once."""
        answers: dict[int, ReplicaState] = {}
        async with trio.open_nursery() as nursery:
            for address in addresses.values():
                nursery.start_soon(self._ask_one, address, within_s, answers)
        return [answers[member] for member in sorted(answers)]

    async def _ask_one(self, address: str, within_s: float, answers: dict[int, ReplicaState]) -> None:
        config = self._config
        remote = MasterClient(address, config)
        ext = QueryReplicaStateHeader().to_ext(HeaderType.JSON)
        try:
            answer = await remote.call(RequestCode.QUERY_REPLICA_STATE, ext, timeout_s=within_s)
            if answer.code != ResponseCode.SUCCESS:
                return
            state = ReplicaState.from_json(answer.body)
        except ReputError:
            return
        finally:
            remote.close()
        is_of_group = (state.cluster, state.broker_name) == (config.cluster, config.broker_name)
        if is_of_group and state.member is not None and state.member != config.broker_id:
            answers[state.member] = state
