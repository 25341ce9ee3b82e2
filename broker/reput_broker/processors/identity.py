"""How a broker names itself in answers: its cluster, its name, its address, and which start of it this is."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from reput_broker.config.model import BrokerConfig
from reput_broker.request import Request


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The names of one broker, as routes show them."""

    config: BrokerConfig
    start_id: str = field(default_factory=lambda: secrets.token_hex(8))
    """Tells this start from another broker of the same name at an announced address."""

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        return self.config.cluster

    @property
    def broker_name(self) -> str:
        """Name of the broker."""
        return self.config.broker_name

    def facts(self) -> Mapping[str, str]:
        """Return the header fields by which the bundled client recognises this start of this broker."""
        return {"brokerName": self.broker_name, "startId": self.start_id}

    def address_for(self, request: Request) -> str:
        """Return the address that routes name: the configured one, or the one that the asking client dialled."""
        return self.config.advertise or request.client.dialled_address
