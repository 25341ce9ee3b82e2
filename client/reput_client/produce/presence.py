"""A producer that brokers ask things, or hand replies to: its membership, and the background that keeps it up.

Producers that only send have none of it.
"""

from __future__ import annotations

from reput_client.produce.producer_membership import ProducerMembership
from reput_client.transport.address import Address
from reput_client.transport.background import Background
from reput_client.transport.session import Session
from reput_protocol.names import check_client_group


class Presence:
    """Whether and how brokers know one producer. It begins when it is first needed."""

    def __init__(self, session: Session, group: str, heartbeat_interval_s: float) -> None:
        self._group = group
        self._membership = ProducerMembership(session, group, heartbeat_interval_s)
        # It logs what ends it; whatever needs it next begins it anew.
        self._background = Background(session, (self._membership,), on_failure=lambda: None)
        self._membership.on_due = self._background.wake

    @property
    def client_id(self) -> str:
        """What brokers know the producer by; empty before it has begun."""
        return self._membership.client_id

    async def begin(self) -> None:
        """Register with a broker and keep that up; nothing happens if it has begun.

        Raises:
            ConnectFailed, RequestTimeout: none answers.
            BrokerError: it does not take us.
        """
        if not self._background.running:
            await self._membership.join()
            self._background.start()

    async def be_known_to(self, address: Address, deadline: float | None = None) -> None:
        """Have a broker know the producer by the connection that there is to it now; begins it if need be.

        Raises:
            InvalidName: the group's name is not one for members.
            ConnectFailed, RequestTimeout, BrokerError: as `begin`.
        """
        check_client_group(self._group)
        await self._membership.be_known_to(address, deadline)
        self._background.start()

    async def leave(self) -> None:
        """Tell the brokers that the producer is gone; never raises."""
        await self._membership.leave()

    async def stop(self, timeout_s: float) -> None:
        """Keep it up no longer."""
        if self._background.running:
            await self._background.stop(timeout_s)

    def forget(self) -> None:
        """In a forked child: it has not begun."""
        self._membership.forget()
        self._background.forget()
