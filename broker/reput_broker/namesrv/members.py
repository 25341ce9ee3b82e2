"""The members of this broker's group, as they tell each other where clients reach them.

A slave says its id and address when it asks for its master's state, and gets what the master knows of the others. So
each member can name all of them, also without a name server, and after a failover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from reput_broker.config.units import checked_address
from reput_protocol.commands.replica import GroupMember

FORGOTTEN_AFTER_S: Final = 24 * 3600.0
"""A member that was not there for so long is not listed any more: it was taken out of the group."""
_MEMBERS_MAX: Final = 128
_UNSPECIFIED: Final = ("0.0.0.0", "[::]", "::", "")


class GroupMembers:
    """The other members of the group.

    Args:
        clock: seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.own_id = 0
        """The id under which this broker is announced as a slave; 0 if it is a master without an election."""
        self.own_address = ""
        """Where clients reach this broker; empty before it serves."""
        self._clock = clock
        self._seen: dict[int, tuple[str, float]] = {}

    def asked(self, slave_id: int | None, address: str | None, host: str) -> None:
        """Note a slave that has asked for this broker's state.

        Args:
            address: where clients reach it, as it says; with its own host if it names none.
            host: of its connection.
        """
        if not slave_id or not address or slave_id == self.own_id:
            return
        named, _, port = address.rpartition(":")
        self._note(slave_id, f"{host}:{port}" if named in _UNSPECIFIED else address, self._clock())

    def learned(self, members: Iterable[GroupMember]) -> None:
        """Note what the master knows of the others, and of itself."""
        now = self._clock()
        for member in members:
            if member.slave_id and member.slave_id != self.own_id:
                self._note(member.slave_id, member.address, now - member.age_s)

    def _note(self, slave_id: int, address: str, seen_at: float) -> None:
        try:
            checked_address(address)
        except ValueError:
            return  # it would be in the routes of every client
        before = self._seen.get(slave_id)
        if (before is None or before[1] <= seen_at) and (
            before is not None or len(self._seen) < _MEMBERS_MAX
        ):
            self._seen[slave_id] = (address, seen_at)

    def others(self) -> list[GroupMember]:
        """Return the other members by id; those that were away for a day are left out."""
        now = self._clock()
        self._seen = {key: seen for key, seen in self._seen.items() if now - seen[1] < FORGOTTEN_AFTER_S}
        return [
            GroupMember(key, address, max(0.0, now - seen_at))
            for key, (address, seen_at) in sorted(self._seen.items())
        ]

    def who_may_lead(self) -> dict[str, str]:
        """Return the addresses of the other members, as a broker that knows no master adds them to its responses."""
        others = ",".join(member.address for member in self.others())
        return {"members": others} if others else {}

    def all(self) -> list[GroupMember]:
        """Return the other members, and this one."""
        own = [GroupMember(self.own_id, self.own_address)] if self.own_id and self.own_address else []
        return [*own, *self.others()]
