"""Brokers of one group in one program, whose master an engine in memory elects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.ha.election.elector import Elector
from reput_broker.ha.election.engine import Leader, Terms
from reput_broker.ha.election.member_file import MemberFile
from reput_broker.ha.epochs import EpochFile
from reput_broker.tenure.core import Role
from support.broker_process import free_port
from support.election_engine import EngineState, FakeEngine

LEASE_S = 2.0


class ElectedGroup:
    """Up to three brokers of one group. `brokers` has those that run, by number.

    Args:
        lease_s: how long a master that does not renew its lease stays the master. A test in which none is lost takes a
            longer one, which a slow machine does not lose either.
        ha: options of `ha`.
    """

    def __init__(self, path: Path, *, lease_s: float = LEASE_S, **ha: Any) -> None:
        self.path, self.ha, self.lease_s = path, ha, lease_s
        self.state = EngineState(lease_s)
        self.ports = {number: (free_port(), free_port()) for number in range(3)}
        self.brokers: dict[int, Broker] = {}
        self.engines = {number: FakeEngine(self.state) for number in range(3)}

    @asynccontextmanager
    async def member(self, number: int, *, in_sync_timeout_s: float = 2.0, **options: Any) -> AsyncIterator[Broker]:
        """Run one of them, with further options."""
        port, ha_port = self.ports[number]
        data_dir = self.path / str(number)
        config = BrokerConfig(
            data_dir=data_dir,
            broker_id=0 if number == 0 else number,
            port=port,
            ha_port=ha_port,
            store={"commit_log_file_size": "1MiB", "index": False},
            topics={"default_queues": 1},
            ha={"send_heartbeat_interval": "200ms", **self.ha},
            election={"etcd": ["http://127.0.0.1:1"]},  # the elector that is given is used instead
            **options,
        )
        epochs = EpochFile(data_dir / "epochFileCheckpoint")
        elector = Elector(
            self.engines[number],
            Leader(number, f"127.0.0.1:{port}", f"127.0.0.1:{ha_port}"),
            Role.ASYNC_MASTER,
            MemberFile(data_dir / "config" / "election.json", cluster="c", broker_name="b", member=number),
            Terms(self.lease_s, first_master=0, in_sync_timeout_s=in_sync_timeout_s, gap_max=1 << 30),
            lambda: epochs.last,
        )
        async with Broker(config, tenures=elector) as broker:
            self.brokers[number] = broker
            yield broker
            del self.brokers[number]

    def master(self) -> Broker:
        """Return the one that holds the lease."""
        leader = self.state.record.leader
        assert leader is not None
        return self.brokers[leader.member]

    async def in_sync(self, *numbers: int, completes: bool = False) -> Broker:
        """Wait until these are in sync with a master that serves, or still completes a batch; return it."""
        async with soon():
            while True:
                record = self.state.record
                broker = self.brokers.get(-1 if record.leader is None else record.leader.member)
                if (
                    broker is not None
                    and record.in_sync == {*numbers}
                    and confirm_offset(broker) is not None
                    and (completes or broker.health.ready)
                ):
                    return broker
                await trio.sleep(0.01)


@asynccontextmanager
async def soon() -> AsyncIterator[None]:
    """Fail what takes too long."""
    with trio.fail_after(20):
        yield


def confirm_offset(broker: Broker) -> int | None:
    """Return up to where the log is confirmed; None while the broker leads no group."""
    try:
        return broker.store.confirm_offset if broker.store.is_open else None
    except AssertionError:
        return None  # between two tenures
