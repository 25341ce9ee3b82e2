"""The members of this broker's group, as they tell each other where clients reach them.

A slave says its id and address when it asks for its master's state, and gets what the master knows of the others. So
each member can name all of them, also without a name server, and after a failover.

The addresses are in the routes of clients, and a user who may replicate names them. The address cannot be bound to the
host that names it, since clients may reach a broker under another one than its master does. So one host names few
members, and moves none that is there and that another host, or the master, has named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from reput_broker.config.value_types import checked_address
from reput_protocol.commands.replica import MemberBroker

FORGOTTEN_AFTER_S: Final = 24 * 3600.0
"""A member that was not there for so long is not listed any more: it was taken out of the group."""
_THERE_S: Final = 60.0
"""A member was there so shortly ago that it still is: it asks every few seconds."""
_MEMBERS_MAX: Final = 32
_OF_A_HOST_MAX: Final = 8
_UNSPECIFIED: Final = ("0.0.0.0", "[::]", "::", "")


class _Seen(NamedTuple):
    address: str
    at: float
    host: str
    """Of the connection on which the member said so; empty if the master named it."""


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
        self._seen: dict[int, _Seen] = {}

    def asked(self, slave_id: int | None, address: str | None, host: str) -> None:
        """Note a slave that has asked for this broker's state.

        Args:
            address: where clients reach it, as it says; with its own host if it names none.
            host: of its connection.
        """
        if not slave_id or not address or slave_id == self.own_id:
            return
        named, _, port = address.rpartition(":")
        seen = _Seen(f"{host}:{port}" if named in _UNSPECIFIED else address, self._clock(), host)
        before = self._seen.get(slave_id)
        if before is not None and before.host != host and self._is_there(before):
            if before.address != seen.address:
                return
            seen = seen._replace(host=before.host)
        self._note(slave_id, seen)
        of_host = [key for key, other in self._seen.items() if host and other.host == host]
        if len(of_host) > _OF_A_HOST_MAX:
            del self._seen[self._longest_away(of_host)]

    def learned(self, members: Iterable[MemberBroker]) -> None:
        """Note what the master knows of the others, and of itself."""
        now = self._clock()
        for member in members:
            if member.slave_id and member.slave_id != self.own_id:
                before = self._seen.get(member.slave_id)
                is_same = before is not None and before.address == member.address
                host = before.host if before is not None and is_same else ""
                self._note(member.slave_id, _Seen(member.address, now - member.age_s, host))

    def _is_there(self, seen: _Seen) -> bool:
        return self._clock() - seen.at < _THERE_S

    def _longest_away(self, slave_ids: Iterable[int]) -> int:
        return min(slave_ids, key=lambda slave_id: self._seen[slave_id].at)

    def _note(self, slave_id: int, seen: _Seen) -> None:
        try:
            checked_address(seen.address)
        except ValueError:
            return  # it would be in the routes of every client
        before = self._seen.get(slave_id)
        if before is not None and before.at > seen.at:
            return
        if before is None and len(self._seen) >= _MEMBERS_MAX:
            away = self._longest_away(self._seen)
            if self._is_there(self._seen[away]):
                return
            del self._seen[away]
        self._seen[slave_id] = seen

    def others(self) -> list[MemberBroker]:
        """Return the other members by id; those that were away for a day are left out."""
        now = self._clock()
        self._seen = {key: seen for key, seen in self._seen.items() if now - seen.at < FORGOTTEN_AFTER_S}
        return [MemberBroker(key, seen.address, max(0.0, now - seen.at)) for key, seen in sorted(self._seen.items())]

    def who_may_lead(self) -> dict[str, str]:
        """Return the addresses of the other members, as a broker that knows no master adds them to its responses."""
        others = ",".join(member.address for member in self.others())
        return {"members": others} if others else {}

    def all(self) -> list[MemberBroker]:
        """Return the other members, and this one."""
        own = [MemberBroker(self.own_id, self.own_address)] if self.own_id and self.own_address else []
        return [*own, *self.others()]
