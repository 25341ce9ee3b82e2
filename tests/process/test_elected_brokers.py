"""Brokers in one program whose master an engine in memory elects: what clients see of the in-sync set and the fence."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.ha import slave_synchronize
from reput_broker.ha.election import in_sync_set
from reput_broker.ha.election.in_sync_set import LogCopies, TableCopies
from reput_broker.ha.epochs import EpochFile
from reput_broker.ha.slave_synchronize import SlaveSynchronize
from reput_broker.remoting.client import RemoteUnreachable, RemotingClient
from reput_broker.remoting.request import ClientAnswer, Refusal, Response
from reput_broker.server.listener import Server
from reput_broker.staging.batches import Publisher, StagedCopies
from reput_broker.store.base.errors import StoreDamaged
from reput_broker.tables.tables import Tables
from reput_client import Consumer, Message, Producer, ReceivedMessage, TransactionProducer, TransactionState
from reput_client.produce.staging_producer import StagingProducer, StagingScope
from reput_protocol.codes import AckLevel, PullSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.consumers import SendBackHeader
from reput_protocol.commands.group import (
    ConsumerData,
    ConsumerList,
    ConsumerListHeader,
    HeartbeatData,
    SubscriptionData,
)
from reput_protocol.commands.namesrv import RegisterBrokerBody, RegisterBrokerHeader
from reput_protocol.commands.offset import OffsetResult, QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from reput_protocol.commands.pull import PullMessageHeader, PullMessageResult
from reput_protocol.commands.replica import PromoteBrokerHeader, Promotion, QueryReplicaStateHeader
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.commands.topic import ClusterInfo, RouteHeader, TopicConfig, TopicConfigTable
from reput_protocol.errors import BrokerError, ErrorCode
from reput_protocol.record.message_id import decode_offset_message_id
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.wire.channel import Peer
from reput_protocol.wire.header import HeaderType
from support.elected_group import ElectedGroup, soon
from support.inside import elector_of, parts_of, storage_of
from support.waiting import until

_T = TypeVar("_T")

TOPIC = "T"
PULL = PullMessageHeader("g", TOPIC, 0, 0, 10, PullSysFlag.SUBSCRIPTION, subscription="*")


async def ask(broker: Broker, code: RequestCode, ext: Any, body: bytes = b"") -> ClientAnswer:
    client = RemotingClient(broker.address, peer=Peer.REPUT)
    try:
        return await client.call(code, ext, body, timeout_s=10.0)
    finally:
        client.close()


async def put(broker: Broker, body: bytes, ack: AckLevel = AckLevel.REPLICATED) -> ClientAnswer:
    header = SendMessageHeader("p", TOPIC, 0, ack=ack)
    return await ask(broker, RequestCode.SEND_MESSAGE, header.to_ext(HeaderType.MSGPACK), body)


async def commit(broker: Broker, offset: int) -> ClientAnswer:
    header = UpdateConsumerOffsetHeader("g", TOPIC, 0, offset)
    return await ask(broker, RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext(HeaderType.MSGPACK))


async def committed(broker: Broker) -> ClientAnswer:
    header = QueryConsumerOffsetHeader("g", TOPIC, 0)
    return await ask(broker, RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext(HeaderType.MSGPACK))


async def between_tenures(work: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat `work` while its connection ends, as connections do when a broker's role changes."""
    async with soon():
        while True:
            with suppress(RemoteUnreachable):
                return await work()
            await trio.sleep(0.05)


async def put_once_it_leads(broker: Broker, body: bytes) -> None:
    async with soon():
        while True:
            with suppress(RemoteUnreachable):
                if (await put(broker, body, AckLevel.FLUSHED)).code == 0:
                    return
            await trio.sleep(0.05)


async def until_refused(broker: Broker, reason: str) -> None:
    async with soon():
        while True:
            with suppress(RemoteUnreachable):
                if reason in ((await put(broker, b"refused", AckLevel.FLUSHED)).remark or ""):
                    return
            await trio.sleep(0.05)


async def promote(broker: Broker, number: int, *, force: bool = False) -> ClientAnswer:
    ext = PromoteBrokerHeader(number, force).to_ext(HeaderType.MSGPACK)
    return await ask(broker, RequestCode.PROMOTE_BROKER, ext)


def readable(broker: Broker) -> int:
    """Return how many messages of the topic consumers can see."""
    return broker.store.max_offset_in_queue(TOPIC, 0)


@pytest.mark.trio
async def test_consumers_see_only_what_the_set_has(tmp_path: Path) -> None:
    group = ElectedGroup(tmp_path, slave_read_enabled=True, slave_timeout="500ms")
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(group.member(0))
        async with group.member(1) as slave:
            await group.in_sync(0, 1)
            assert (await put(master, b"one")).code == 0
            assert readable(master) == 1
            await until(lambda: slave.store.confirm_offset == master.store.confirm_offset)
            await until(lambda: readable(slave) == 1)
            master.store.is_in_memory = lambda *_: False
            assert (await commit(master, 0)).code == 0  # the group exists by that
            pulled = await ask(master, RequestCode.PULL_MESSAGE, PULL.to_ext(HeaderType.MSGPACK))
            suggested = PullMessageResult.from_ext(pulled.ext).suggest_which_broker_id
            assert suggested == 2, "member 1 is announced so, and there is no slave with id 1"
        # The member is counted until it has been away for a tenth of the timeout.
        assert (await put(master, b"two", AckLevel.FLUSHED)).code == 0
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
    group = ElectedGroup(tmp_path)
    async with group.member(0) as first:
        async with group.member(1):
            await group.in_sync(0, 1)
            assert (await put(first, b"one")).code == 0
            kept = first.store.max_physical_offset
        await group.in_sync(0)
        assert (await put(first, b"only on the first", AckLevel.FLUSHED)).code == 0
        end = first.store.max_physical_offset
        away = await promote(first, 1, force=True)
        assert "member 1 does not copy from this master now" in (away.remark or "")
    # The first is gone, and only it is in sync.
    async with group.member(1) as second:
        await until(lambda: "not in sync" in str(elector_of(second).reason))
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
async def test_a_restored_engine_cuts_nothing_that_is_confirmed(tmp_path: Path) -> None:
    """The engine forgets that member 2 has left the set, and elects it once it can ask no member that knows of that."""
    group = ElectedGroup(tmp_path)
    async with group.member(0) as first, group.member(1) as second:
        async with group.member(2):
            await group.in_sync(0, 1, 2)
            copy = group.state.record
        await group.in_sync(0, 1)
        assert (await put(first, b"without member 2")).code == 0
        end = first.store.max_physical_offset
        await until(lambda: elector_of(second).confirmed([], end) == end)
    group.state.keep(replace(copy, leader=None))
    async with group.member(1), group.member(2) as third:
        await until(lambda: "but member 1 saw epoch 1" in elector_of(third).reason)
        assert group.state.record.leader is None
    async with group.member(2), group.member(1) as second:
        await group.in_sync(2)
        await until(lambda: f"log is confirmed up to {end}" in str(second._status()))
        assert second.store.max_physical_offset == end
    async with group.member(1) as second:
        assert (await promote(second, 1, force=True)).code == 0
        await group.in_sync(1)
        async with group.member(2) as third:
            await group.in_sync(1, 2)
            assert third.store.max_physical_offset == end


@pytest.mark.trio
async def test_a_master_without_its_engine_refuses_after_its_lease(tmp_path: Path) -> None:
    group = ElectedGroup(tmp_path)
    async with group.member(0) as master:
        await put_once_it_leads(master, b"one")
        group.state.is_down = True
        epoch = group.state.record.epoch
        answers: list[str] = []
        async with soon():
            while not answers or not answers[-1].startswith("NOT_MASTER"):
                answers.append((await put(master, b"more", AckLevel.FLUSHED)).remark or "")
                await trio.sleep(0.02)
        assert answers[0] == ""
        group.state.is_down = False
        await until(lambda: group.state.record.epoch > epoch)
        await put_once_it_leads(master, b"two")


@pytest.mark.trio
async def test_clients_leave_a_master_that_only_they_can_reach(tmp_path: Path) -> None:
    """It is cut off from the engine, and its name service knows of no master. New clients find the other one too."""
    group = ElectedGroup(tmp_path)
    async with group.member(0) as old, group.member(1) as new:
        await group.in_sync(0, 1)
        addresses = [old.address, new.address]
        async with Producer(addresses, timeout_s=15.0, retries=3) as producer:
            await producer.send(Message(TOPIC, b"one"))
            group.engines[0].is_cut_off = True
            await until(lambda: group.state.record.leader is not None and group.master() is new)
            await producer.send(Message(TOPIC, b"two"))
            async with Producer(addresses) as late:
                await late.send(Message(TOPIC, b"three"))
            async with Consumer(addresses, group="g", topic=TOPIC) as consumer:
                taken = [await consumer.take(10.0) for _ in range(3)]
        assert not old._base.tenures.current.is_master
        assert [message and message.body for message in taken] == [b"one", b"two", b"three"]


@pytest.mark.trio
async def test_the_address_of_the_isolated_master_alone_is_enough(tmp_path: Path) -> None:
    """It says which members there are: to clients that it served, and to those that come then."""
    group = ElectedGroup(tmp_path)
    async with group.member(0) as old, group.member(1) as new:
        await group.in_sync(0, 1)
        async with Producer(old.address, timeout_s=15.0, retries=3) as producer:
            await producer.send(Message(TOPIC, b"one"))
            group.engines[0].is_cut_off = True
            await until(lambda: group.state.record.leader is not None and group.master() is new)
            answer = await between_tenures(lambda: put(old, b"refused"))
            assert (answer.remark or "").startswith("NOT_MASTER")
            assert answer.ext["members"] == new.address
            await producer.send(Message(TOPIC, b"two"))
            async with Producer(old.address, timeout_s=15.0) as late:
                await late.send(Message(TOPIC, b"three"))
            async with Consumer(old.address, group="g", topic=TOPIC) as consumer:
                taken = [await consumer.take(10.0) for _ in range(3)]
        assert [message and message.body for message in taken] == [b"one", b"two", b"three"]
        assert new.store.max_offset_in_queue(TOPIC, 0) == 3


@pytest.mark.trio
async def test_a_master_stops_although_its_own_puts_wait_for_the_fence(tmp_path: Path) -> None:
    """The decision of a transaction is not in the op queue yet, and is not put there after a hand-over."""
    group = ElectedGroup(tmp_path)
    async with group.member(0) as master:
        await group.in_sync(0)

        async def never(_: ReceivedMessage) -> TransactionState:
            return TransactionState.UNKNOWN

        async def roll_back(_: Message) -> TransactionState:
            return TransactionState.ROLLBACK

        async with TransactionProducer(master.address, group="p", check=never) as producer:
            await producer.send_in_transaction(Message(TOPIC, b"x"), roll_back)
        parts = parts_of(master)
        parts.core.puts.fence.end("handed over")
        assert ((await committed(master)).remark or "").startswith("NOT_MASTER")
        async with soon():
            await parts.finish()


@pytest.mark.trio
async def test_a_hand_over_loses_no_offset_that_was_committed(tmp_path: Path) -> None:
    """A group commits until it is refused; the next master has what was acknowledged last."""
    group = ElectedGroup(tmp_path)
    async with group.member(0) as master, group.member(1) as slave:
        await group.in_sync(0, 1)
        for _ in range(20):
            assert (await put(master, b"x")).code == 0
        offset, remark = -1, ""
        async with soon(), trio.open_nursery() as nursery:
            nursery.start_soon(promote, master, 1)
            while not remark:
                try:
                    answer = await commit(master, offset + 1)
                except RemoteUnreachable:
                    break
                remark = answer.remark or ""
                offset += answer.code == 0
        assert remark.startswith("NOT_MASTER")
        assert await group.in_sync(0, 1) is slave
        assert OffsetResult.from_ext((await committed(slave)).ext).offset == offset


def tables_of(broker: Broker) -> Tables:
    return storage_of(broker).tables


async def make_topic(broker: Broker, name: str) -> ClientAnswer:
    ext = {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    ext |= {"defaultTopic": "TBW102", "topicSysFlag": 0, "order": False}
    return await ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)


@pytest.mark.trio
async def test_a_change_is_answered_once_the_set_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = ElectedGroup(tmp_path, in_sync_replicas=2, slave_timeout="60s")
    held = trio.Event()
    take = SlaveSynchronize._take_if_due

    async def take_later(self: SlaveSynchronize, table: Any) -> None:
        await held.wait()
        await take(self, table)

    async with group.member(0) as first, group.member(1) as second:
        await group.in_sync(0, 1)
        assert (await put(first, b"one")).code == 0
        await until(lambda: readable(first) == 1)
        monkeypatch.setattr(SlaveSynchronize, "_take_if_due", take_later)
        answers: dict[str, ClientAnswer] = {}

        async def note(name: str, work: Awaitable[ClientAnswer]) -> None:
            answers[name] = await work

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, "commit", commit(first, 1))
            nursery.start_soon(note, "topic", make_topic(first, "made"))
            await trio.sleep(0.5)
            assert answers == {}
            held.set()
        assert {name: answer.code for name, answer in answers.items()} == {"commit": 0, "topic": 0}
        tables = tables_of(second)
        assert tables.offsets.query("g", TOPIC, 0) == 1
        assert tables.topics.get("made") is not None


@pytest.mark.trio
async def test_what_a_consumer_returns_is_answered_once_the_set_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ElectedGroup(tmp_path, slave_timeout="60s")
    async with group.member(0, in_sync_timeout_s=60.0) as first, group.member(1):
        await group.in_sync(0, 1)
        ids = [str((await put(first, body)).ext["msgId"]) for body in (b"one", b"other")]
        await until(lambda: readable(first) == 2)
        given_back, other = (decode_offset_message_id(each)[1] for each in ids)
        assert (await give_back(first, given_back)).code == 0, "the retry topic exists now"
        answers: dict[str, ClientAnswer] = {}

        async def note(name: str, work: Awaitable[ClientAnswer]) -> None:
            answers[name] = await work

        async with trio.open_nursery() as nursery:
            with monkeypatch.context() as patched:
                patched.setattr(LogCopies, "acknowledged", lambda *_: None)
                nursery.start_soon(note, "back", give_back(first, other))
                nursery.start_soon(note, "sent", send_to_retry_topic(first))
                nursery.start_soon(note, "put", put(first, b"two", AckLevel.FLUSHED))
                await until(lambda: "put" in answers)
                await trio.sleep(0.3)
                assert set(answers) == {"put"}
        assert {name: answer.code for name, answer in answers.items()} == {"put": 0, "back": 0, "sent": 0}


async def give_back(broker: Broker, physical_offset: int) -> ClientAnswer:
    header = SendBackHeader(physical_offset, "g", 3)
    return await ask(broker, RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext(HeaderType.MSGPACK))


async def send_to_retry_topic(broker: Broker) -> ClientAnswer:
    header = SendMessageHeader("g", "%RETRY%g", 0, reconsume_times=1, ack=AckLevel.FLUSHED)
    return await ask(broker, RequestCode.SEND_MESSAGE, header.to_ext(HeaderType.MSGPACK), b"one")


@pytest.mark.trio
async def test_a_master_that_stops_does_not_wait_for_members_that_wait_for_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, longest in (
        (slave_synchronize, "_WAIT_MS", 60_000),
        (slave_synchronize, "_TIMEOUT_S", 60.0),
        (in_sync_set, "_HELD_S", 60.0),
    ):
        monkeypatch.setattr(module, name, longest)
    close_all, are_busy = Server.close_all, list[bool]()

    def note(self: Server) -> None:
        are_busy.append(self.is_busy)
        close_all(self)

    monkeypatch.setattr(Server, "close_all", note)
    group = ElectedGroup(tmp_path, in_sync_replicas=2)
    async with group.member(1):
        async with group.member(0):
            await group.in_sync(0, 1)
            await trio.sleep(0.5)
            are_busy.clear()
        assert are_busy
        assert not any(are_busy), "it has waited for answers, and in vain"


@pytest.mark.trio
async def test_a_master_that_has_lost_its_slaves_or_its_engine_answers_no_change(tmp_path: Path) -> None:
    group = ElectedGroup(tmp_path, in_sync_replicas=2, slave_timeout="300ms")
    async with group.member(0, in_sync_timeout_s=1.0) as first:
        async with group.member(1):
            await group.in_sync(0, 1)
            assert (await put(first, b"one")).code == 0
            await until(lambda: readable(first) == 1)
            assert (await commit(first, 1)).code == 0
            group.state.is_down = True
        # Member 1 may take over, for all that this master knows.
        refused = await commit(first, 0)
        assert refused.code != 0
        assert "a failover may take it back: members [0, 1] are in sync" in (refused.remark or "")
        group.state.is_down = False
        group.state.renew()
        await group.in_sync(0)
        assert (await commit(first, 1)).code == 0, "no other can take over now"


@pytest.mark.trio
async def test_a_slave_of_an_earlier_version_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = ElectedGroup(tmp_path, in_sync_replicas=2)

    async def ask_nothing(*_: object) -> None: ...

    ext_of = QueryReplicaStateHeader.to_ext

    def without(self: QueryReplicaStateHeader, header_type: HeaderType) -> dict[str, Any]:
        return {name: value for name, value in ext_of(self, header_type).items() if name != "copiesTables"}

    monkeypatch.setattr(SlaveSynchronize, "_be_told", ask_nothing)
    monkeypatch.setattr(QueryReplicaStateHeader, "to_ext", without)
    async with group.member(0) as first, group.member(1):
        await group.in_sync(0, 1)
        assert (await put(first, b"one")).code == 0
        await until(lambda: readable(first) == 1)
        assert (await commit(first, 1)).code == 0


@pytest.mark.trio
async def test_a_slave_follows_a_master_of_an_earlier_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = ElectedGroup(tmp_path)
    monkeypatch.setattr(TableCopies, "wait", lambda *_: Response(int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)))
    async with group.member(0) as first, group.member(1) as second:
        await group.in_sync(0, 1)
        assert (await put(first, b"one")).code == 0
        await until(lambda: readable(first) == 1)
        assert (await commit(first, 1)).code == 0
        await until(lambda: tables_of(second).offsets.query("g", TOPIC, 0) == 1)


async def heartbeat(client: RemotingClient, client_id: str) -> None:
    consumer = ConsumerData("g", subscriptions=[SubscriptionData(TOPIC, "*")])
    body = HeartbeatData(client_id, [consumer]).to_json()
    answer = await client.call(RequestCode.HEART_BEAT, {}, body, timeout_s=10.0)
    assert answer.code == 0, answer.remark


async def members(client: RemotingClient) -> list[str]:
    ext = ConsumerListHeader("g").to_ext(HeaderType.MSGPACK)
    answer = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext, timeout_s=10.0)
    return ConsumerList.from_json(answer.body).consumer_ids


@pytest.mark.trio
async def test_a_new_master_awaits_the_members_of_the_one_before(tmp_path: Path) -> None:
    """With a list of those that have come, they would consume the queues of the others, which still do so too."""
    group = ElectedGroup(tmp_path)
    clients = []

    def connect(broker: Broker) -> RemotingClient:
        clients.append(RemotingClient(broker.address, peer=Peer.REPUT))
        return clients[-1]

    async with group.member(0) as first, group.member(1) as second:
        await group.in_sync(0, 1)
        one, two = connect(first), connect(first)
        await heartbeat(one, "one")
        await heartbeat(two, "two")
        copied = tmp_path / "1" / "config" / "groupMembers.json"
        await until(lambda: copied.exists() and b"two" in copied.read_bytes())
        assert (await promote(first, 1)).code == 0
        assert await group.in_sync(0, 1) is second
        again = connect(second)
        await heartbeat(again, "one")
        assert await members(again) == ["one", "two"]
        assert not copied.exists(), "another start would await members of long ago"
        membership = parts_of(second).core.groups.membership
        membership.awaited.expect({"g": {"two": 0.0}}, trio.current_time())  # its time is over
        membership.expire()
        assert await members(again) == ["one"], "it did not come"
    for client in clients:
        client.close()


@pytest.mark.trio
async def test_a_master_with_a_full_disk_gives_way(tmp_path: Path) -> None:
    group = ElectedGroup(tmp_path)
    async with group.member(0) as master, group.member(1) as slave:
        await group.in_sync(0, 1)
        master.store.refuse_for_disk("the disk is full")
        await put_once_it_leads(slave, b"one")
        assert group.master() is slave


@pytest.mark.trio
async def test_a_member_that_cannot_lead_stays_up_as_a_slave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = ElectedGroup(tmp_path)
    real, failures = EpochFile.begin, [OSError(errno.ENOSPC, "No space left on device")]

    def begin(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(EpochFile, "begin", begin)
    async with group.member(0) as master:
        await until(lambda: "No space left" in str(elector_of(master).reason))
        assert "is a slave" in ((await put(master, b"one", AckLevel.FLUSHED)).remark or "")
        await put_once_it_leads(master, b"one")
        assert group.state.record.epoch == 2


async def decided(master: Broker, publisher_stops: pytest.MonkeyPatch) -> None:
    """Decide a batch of three messages, and have nothing of any batch published from then on."""

    async def refuse(*_: object) -> None:
        raise Refusal(ErrorCode.DISK_FULL, "no space left")

    publisher_stops.setattr(Publisher, "_put", refuse)
    async with StagingProducer(master.address, timeout_s=10) as writer:
        writer.begin(StagingScope("q", 0, 0, "staging1"))
        messages = [Message(TOPIC, b"%d" % number) for number in range(3)]
        await writer.stage(TOPIC, 0, 3, encode_put_block(messages, TOPIC, 0, 1, ["a", "b", "c"]))
        part = await writer.end()
        with pytest.raises(BrokerError, match="is decided"):
            await writer.commit("q", 0, [part])


@pytest.mark.trio
async def test_slaves_follow_a_master_that_completes_a_batch_and_one_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next master has no room for the stagings; the other one has."""
    group = ElectedGroup(tmp_path, lease_s=6.0)  # it must not end by itself

    async def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with group.member(1) as second, AsyncExitStack() as first:
        with monkeypatch.context() as publisher_stops:
            with monkeypatch.context() as staging_disk_is_full:
                master = await first.enter_async_context(group.member(0))
                await group.in_sync(0, 1)
                assert (await put(master, b"before")).code == 0
                await decided(master, publisher_stops)
                staging_disk_is_full.setattr(StagedCopies, "restore", no_space)
                await first.aclose()
                assert await group.in_sync(1, completes=True) is second
                await until_refused(second, "completes batch 0 of query q")
                master = await first.enter_async_context(group.member(0))
                assert await group.in_sync(0, 1, completes=True) is second
            second.store.refuse_for_disk("the disk is full")
            await until(lambda: group.state.record.leader is not None and group.master() is master)
        await put_once_it_leads(master, b"after")
        await until(lambda: readable(master) == 5)


@pytest.mark.trio
async def test_a_member_that_cannot_complete_a_batch_stays_up_as_a_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ElectedGroup(tmp_path)
    async with group.member(0) as master:
        await put_once_it_leads(master, b"before")
        with monkeypatch.context() as publisher_stops:
            await decided(master, publisher_stops)
    (staging,) = (tmp_path / "0" / "staging").glob("*.stage")
    staging.unlink()

    async def damaged(*_: object) -> None:
        raise StoreDamaged(tmp_path, 0, "the disk does not answer", "check the disk")

    with monkeypatch.context() as disk:
        disk.setattr(StagedCopies, "restore", damaged)
        async with group.member(0) as master:
            await until(lambda: "does not answer" in str(elector_of(master).reason))
            await until_refused(master, "is a slave")
            disk.undo()
            await put_once_it_leads(master, b"after")
            await until(lambda: readable(master) == 5)


@pytest.mark.trio
async def test_routes_of_other_brokers_stay_when_the_role_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One registers again while the tenure ends."""
    group = ElectedGroup(tmp_path)
    drain = Server.drain
    async with group.member(0) as master:
        await group.in_sync(0)
        other = RemotingClient(master.address)

        async def register() -> None:
            header = RegisterBrokerHeader("other", "127.0.0.1:9", "c", "127.0.0.1:10", 0)
            body = TopicConfigTable({"theirs": TopicConfig("theirs", 1, 1, 6)}, {"counter": 1})
            registered = await other.call(
                RequestCode.REGISTER_BROKER,
                header.to_ext(HeaderType.JSON),
                RegisterBrokerBody(body).to_json(),
                timeout_s=10.0,
            )
            assert registered.code == 0, registered.remark

        async def drain_slowly(server: Server, grace_s: float) -> None:
            await register()
            await drain(server, grace_s)

        await between_tenures(register)
        elector = elector_of(master)
        with monkeypatch.context() as patch:
            patch.setattr(Server, "drain", drain_slowly)
            await elector.give_up(1, "a test")
            await until(lambda: master._running is not None and not master._running.tenure.is_master)
            await until(lambda: master._running is not None and master._running.parts is not None)
        route = RouteHeader("theirs").to_ext(HeaderType.MSGPACK)
        answer = await between_tenures(lambda: ask(master, RequestCode.GET_ROUTEINFO_BY_TOPIC, route))
        assert b"127.0.0.1:9" in answer.body
        other.close()


@pytest.mark.trio
async def test_a_broker_without_an_election_promotes_no_other(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, port=0, store={"commit_log_file_size": "1MiB"})
    async with Broker(config) as broker:
        assert "no engine elects the master of this broker" in ((await promote(broker, 1)).remark or "")


async def members_at(broker: Broker) -> dict[int, str]:
    answer = await between_tenures(lambda: ask(broker, RequestCode.GET_BROKER_CLUSTER_INFO, {}))
    (data,) = ClusterInfo.from_json(answer.body).broker_addr_table.values()
    return {number: address.removeprefix("127.0.0.1:") for number, address in data.broker_addrs.items()}


@pytest.mark.trio
async def test_every_member_names_the_whole_group_also_after_a_failover(tmp_path: Path) -> None:
    """Without name servers; slave ids are the members' numbers and one."""
    group = ElectedGroup(tmp_path)
    ports = {number: str(port) for number, (port, _) in group.ports.items()}

    async def all_name(expected: dict[int, str], *brokers: Broker) -> None:
        for broker in brokers:
            async with soon():
                while (found := await members_at(broker)) != expected:
                    assert len(set(found.values())) == len(found), "no member is listed twice"
                    await trio.sleep(0.05)

    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(group.member(number)) for number in (1, 2)]
        async with group.member(0) as master:
            await group.in_sync(0, 1, 2)
            await all_name({0: ports[0], 2: ports[1], 3: ports[2]}, master, *others)
        async with soon():
            while (leader := group.state.record.leader) is None or leader.member == 0:
                await trio.sleep(0.02)
        slave = 3 - leader.member
        await all_name({0: ports[leader.member], 1: ports[0], slave + 1: ports[slave]}, *others)
