"""Brokers in one program whose master an engine in memory elects: what clients see of the in-sync set and the fence."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from election_engine import EngineState, FakeEngine
from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.ha.election.elector import Elector
from reput_broker.ha.election.engine import Leader
from reput_broker.ha.election.member_file import MemberFile
from reput_broker.ha.epochs import EpochFile
from reput_broker.ha.roles import Role
from reput_broker.remoting_client import RemotingClient
from reput_broker.request import ClientAnswer
from reput_client import Message, ReceivedMessage, TransactionProducer, TransactionState
from reput_protocol.codes import RequestCode
from reput_protocol.commands.election import PromoteBrokerHeader, Promotion
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.wire.header import HeaderType

LEASE_S = 2.0
TOPIC = "T"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Group:
    """Brokers of one group. `brokers` has those that run, by number."""

    def __init__(self, path: Path, **ha: Any) -> None:
        self.path, self.ha = path, ha
        self.state = EngineState(LEASE_S)
        self.ports = {number: (free_port(), free_port()) for number in range(3)}
        self.brokers: dict[int, Broker] = {}

    @asynccontextmanager
    async def member(self, number: int, *, in_sync_timeout_s: float = 2.0) -> AsyncIterator[Broker]:
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
        )
        epochs = EpochFile(data_dir / "epochFileCheckpoint")
        elector = Elector(
            FakeEngine(self.state),
            Leader(number, f"127.0.0.1:{port}", f"127.0.0.1:{ha_port}"),
            Role.ASYNC_MASTER,
            MemberFile(data_dir / "config" / "election.json", cluster="c", broker_name="b", member=number),
            lease_s=LEASE_S,
            first_master=0,
            log_epoch=lambda: epochs.last,
            in_sync_timeout_s=in_sync_timeout_s,
            gap_max=1 << 30,
        )
        async with Broker(config, tenures=elector) as broker:
            self.brokers[number] = broker
            yield broker
            del self.brokers[number]

    def master(self) -> Broker:
        leader = self.state.record.leader
        assert leader is not None
        return self.brokers[leader.member]

    async def in_sync(self, *numbers: int) -> Broker:
        """Wait until these are in sync with a master that leads; return it."""
        async with _soon():
            while True:
                record = self.state.record
                broker = self.brokers.get(-1 if record.leader is None else record.leader.member)
                if broker is not None and record.in_sync == {*numbers} and confirm_offset(broker) is not None:
                    return broker
                await trio.sleep(0.01)


@asynccontextmanager
async def _soon() -> AsyncIterator[None]:
    with trio.fail_after(20):
        yield


async def until(condition: Callable[[], bool]) -> None:
    async with _soon():
        while not condition():
            await trio.sleep(0.01)


def confirm_offset(broker: Broker) -> int | None:
    try:
        return broker.store.confirm_offset if broker.store.is_open else None
    except AssertionError:
        return None  # between two tenures


async def ask(broker: Broker, code: RequestCode, ext: Any, body: bytes = b"") -> ClientAnswer:
    client = RemotingClient(broker.address, header_type=HeaderType.MSGPACK)
    try:
        return await client.call(code, ext, body, timeout_s=10.0)
    finally:
        client.close()


async def put(broker: Broker, body: bytes, ack: str = "replicated") -> ClientAnswer:
    header = SendMessageHeader("p", TOPIC, 0, ack=ack)
    return await ask(broker, RequestCode.SEND_MESSAGE, header.to_ext(HeaderType.MSGPACK), body)


async def promote(broker: Broker, number: int, *, force: bool = False) -> ClientAnswer:
    ext = PromoteBrokerHeader(number, force).to_ext(HeaderType.MSGPACK)
    return await ask(broker, RequestCode.PROMOTE_BROKER, ext)


def readable(broker: Broker) -> int:
    """Return how many messages of the topic consumers can see."""
    return broker.store.max_offset_in_queue(TOPIC, 0)


@pytest.mark.trio
async def test_consumers_see_only_what_the_set_has(tmp_path: Path) -> None:
    group = Group(tmp_path, slave_read_enabled=True, slave_timeout="500ms")
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(group.member(0))
        async with group.member(1) as slave:
            await group.in_sync(0, 1)
            assert (await put(master, b"one")).code == 0
            assert readable(master) == 1
            await until(lambda: slave.store.confirm_offset == master.store.confirm_offset)
            await until(lambda: readable(slave) == 1)
        # The member is counted until it has been away for a tenth of the timeout.
        assert (await put(master, b"two", "flushed")).code == 0
        assert readable(master) == 1
        assert group.state.record.in_sync == {0, 1}
        alone = await put(master, b"three")
        assert alone.code == 12, "the set shrinks meanwhile, which makes no second copy"
        assert "in sync are [0]" in (alone.remark or "")
        await group.in_sync(0)
        assert readable(master) == 3
        refused = await put(master, b"four")
        assert "in sync are [0]" in (refused.remark or "")


@pytest.mark.trio
async def test_a_hand_over_is_refused_or_says_what_is_lost(tmp_path: Path) -> None:
    group = Group(tmp_path)
    async with group.member(0) as first:
        async with group.member(1):
            await group.in_sync(0, 1)
            assert (await put(first, b"one")).code == 0
            kept = first.store.max_physical_offset
        await group.in_sync(0)
        assert (await put(first, b"only on the first", "flushed")).code == 0
        end = first.store.max_physical_offset
        away = await promote(first, 1, force=True)
        assert "member 1 does not copy from this master now" in (away.remark or "")
    # The first is gone, and only it is in sync.
    async with group.member(1) as second:
        await until(lambda: "not in sync" in str(second._base.elector and second._base.elector.reason))
        refused = await promote(second, 1)
        assert f"its log up to {kept}, and what only members [0] have" in (refused.remark or "")
        made = Promotion.from_json((await promote(second, 1, force=True)).body)
        assert (made.broker_id, made.end_offset) == (1, kept)
        await group.in_sync(1)
        async with group.member(0) as returned:
            await group.in_sync(0, 1)
            assert returned.store.max_physical_offset == kept
            (cut,) = (tmp_path / "0" / "cut").iterdir()
            assert cut.name == f"{kept}-{end}.log"
            assert b"only on the first" in cut.read_bytes()
            assert (await promote(returned, 0)).ext["master"] == second.address


@pytest.mark.trio
async def test_a_master_without_its_engine_refuses_after_its_lease(tmp_path: Path) -> None:
    group = Group(tmp_path)
    async with group.member(0) as master:
        await group.in_sync(0)
        assert (await put(master, b"one", "flushed")).code == 0
        group.state.is_down = True
        answers = []
        async with _soon():
            while not answers or not answers[-1].startswith("NOT_MASTER"):
                answers.append((await put(master, b"more", "flushed")).remark or "")
                await trio.sleep(0.02)
        assert answers[0] == ""
        group.state.is_down = False
        await until(lambda: group.state.record.epoch == 2)
        await group.in_sync(0)
        assert (await put(master, b"two", "flushed")).code == 0


@pytest.mark.trio
async def test_a_master_stops_although_its_own_puts_wait_for_the_fence(tmp_path: Path) -> None:
    """The decision of a transaction is not in the op queue yet, and is not put there after a hand-over."""
    group = Group(tmp_path)
    async with group.member(0) as master:
        await group.in_sync(0)

        async def never(_: ReceivedMessage) -> TransactionState:
            return TransactionState.UNKNOWN

        async def roll_back(_: Message) -> TransactionState:
            return TransactionState.ROLLBACK

        async with TransactionProducer(master.address, group="p", check=never) as producer:
            await producer.send_in_transaction(Message(TOPIC, b"x"), roll_back)
        parts = master._served.parts  # type: ignore[union-attr]
        assert parts is not None
        parts.puts.fence.end("handed over")
        async with _soon():
            await parts.finish()


@pytest.mark.trio
async def test_a_broker_without_an_election_promotes_no_other(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, port=0, store={"commit_log_file_size": "1MiB"})
    async with Broker(config) as broker:
        assert "no engine elects the master of this broker" in ((await promote(broker, 1)).remark or "")
