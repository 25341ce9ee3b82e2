"""The connections to the brokers of one user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from reput_client import TLS, Credentials, Producer
from reput_client.consume.offsets import OffsetRequests
from reput_client.pop.popped import Settling
from reput_client.produce.transactions import TransactionProducer
from reput_client.received import ReceivedMessage
from reput_client.transport.session import Session
from reput_protocol.codes import AckLevel, TransactionState
from reput_proxy import messaging_pb2 as pb
from reput_proxy.gathered_sends import GatheredSends
from reput_proxy.pops import Pops
from reput_proxy.settings import settings_of_groups, settings_of_topics
from reput_proxy.transactions import Transactions

PRODUCER_GROUP: Final = "reput-proxy"
TIMEOUT_S: Final = 3.0
"""How long a request to a broker takes at most, unless its caller has less time."""


@dataclass(frozen=True)
class BrokerOptions:
    """How the brokers are reached.

    Attributes:
        server: `host:port` of a broker or name server, several separated by commas.
        tls: how to encrypt; None: not at all.
        ack: how safe a message is when its client gets the response, see `Producer`.
    """

    server: str
    tls: TLS | None = None
    ack: AckLevel = AckLevel.FLUSHED


class Upstream:
    """The connections to the brokers of one user, and what uses them; transactions have some of their own.

    Args:
        options: how the brokers are reached.
        credentials: the user; None: requests are not signed.
        ask_producer: sends a command to a client of the user that produces to a topic; False without one.
    """

    def __init__(
        self,
        options: BrokerOptions,
        credentials: Credentials | None,
        ask_producer: Callable[[str, pb.TelemetryCommand], bool],
    ) -> None:
        self.options = options
        self.credentials = credentials
        self.producer = Producer(
            options.server,
            group=PRODUCER_GROUP,
            ack=options.ack,
            timeout_s=TIMEOUT_S,
            tls=options.tls,
            credentials=credentials,
        )
        self.sends = GatheredSends(self.producer)
        self.session: Session = self.producer._session
        self.offsets = OffsetRequests(self.session)
        self.pops = Pops(self.session)
        self.topics = settings_of_topics(self.session)
        self.groups = settings_of_groups(self.session)
        self.transactions = Transactions(self._transaction_producer, self.session, self.topics, ask_producer)

    def settling(self, group: str) -> Settling:
        """Return what settles messages of a group."""
        return Settling(self.session, group)

    def _transaction_producer(self, topic: str) -> TransactionProducer:
        return TransactionProducer(
            self.options.server,
            group=topic,
            check=_leave_open,
            ack=self.options.ack,
            timeout_s=TIMEOUT_S,
            tls=self.options.tls,
            credentials=self.credentials,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        self.pops.close()
        await self.transactions.aclose()
        await self.producer.aclose()


async def _leave_open(_message: ReceivedMessage) -> TransactionState:
    """Never called: checks go to clients."""
    return TransactionState.UNKNOWN
