"""What a broker has in every role, and keeps when its role changes."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import trio

from reput_broker.access.opening import Access
from reput_broker.compose.open_files import OpenFiles
from reput_broker.config.model import BrokerConfig
from reput_broker.groups.cold_quotas import ColdQuotas
from reput_broker.ha.election.elector import Elector
from reput_broker.namesrv.route_info import RouteInfoManager
from reput_broker.observe.health import Health
from reput_broker.observe.history.recorder import History
from reput_broker.observe.metrics import MetricsSources
from reput_broker.processors.operations import Operations
from reput_broker.server.gate import Gate
from reput_broker.tenure import Surroundings, TenureSource


@dataclass(slots=True)
class BrokerBase:
    """What a broker has in every role."""

    config: BrokerConfig
    surroundings: Surroundings
    sources: MetricsSources
    tenures: TenureSource
    waits_for_room: bool
    """Whether a start waits while the disk is full, instead of raising."""
    operations: Operations
    history: History
    """The figures of the past days."""
    cold_quotas: ColdQuotas
    """How much groups may read from the disk."""
    access: Access = None
    """What checks the requests, in every role."""
    routes: RouteInfoManager = field(default_factory=lambda: RouteInfoManager(None, trio.current_time))
    """What other brokers have registered with this one."""
    stop_wanted: trio.Event = field(default_factory=trio.Event)
    open_files: OpenFiles = field(init=False)
    address: tuple[str, int] = ("", 0)
    """Where clients on this machine reach the broker."""
    listeners: dict[str, socket.socket] = field(default_factory=dict)
    """Bound sockets of the protocol, by name."""
    ha_listener: socket.socket | None = None
    """The bound socket on which slaves are served; None if none are."""
    gate: Gate = field(init=False)
    """What connections pass before their first request."""

    @property
    def elector(self) -> Elector | None:
        """What decides the role, if an engine elects."""
        return self.tenures if isinstance(self.tenures, Elector) else None

    @property
    def health(self) -> Health:
        """What /readyz shows."""
        return self.sources.health
