"""What the other members of a group know, asked by a member before it campaigns.

An engine that was restored from an older copy may name as in sync a member that was away when it left the set. That one
has seen nothing of it; the others have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from reput_broker.config.model import BrokerConfig
from reput_broker.ha.log_comparison import OwnLog
from reput_broker.ha.master_proof import MasterClient
from reput_broker.namesrv.members import GroupMembers
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.replica import QueryReplicaStateHeader, ReplicaState
from reput_protocol.errors import ReputError
from reput_protocol.wire.header import HeaderType


class OtherMembers:
    """Asks them.

    Args:
        members: where they are.
        own_log: returns this member's log, to be compared with theirs; None while it is not open.
    """

    def __init__(
        self, config: BrokerConfig, members: GroupMembers, own_log: Callable[[], OwnLog | None]
    ) -> None:
        self._config = config
        self._members = members
        self.own_log = own_log

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
