"""The real broker under a fake clock, without sockets: everything happens exactly when it is due.

`BrokerBench` composes the broker as it is, starts its services, and hands requests straight to its handlers. Worker
threads run inline (`tasks.run_by_the_clock` sees to that), and the wall clock is trio's.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import trio
import trio.testing

from reput_broker.broker import Broker
from reput_broker.compose.master import MasterParts
from reput_broker.compose.storage import Storage
from reput_broker.config.model import BrokerConfig
from reput_broker.remoting.request import Request, Response
from reput_broker.tables.tables import Tables
from reput_broker.tenure.core import Surroundings
from reput_protocol.codes import LanguageCode, RequestCode, TransactionState
from reput_protocol.commands.consumers import SendBackHeader
from reput_protocol.commands.group import HeartbeatData, ProducerData
from reput_protocol.commands.send import SendMessageHeader, SendMessageResult
from reput_protocol.commands.transaction import CheckTransactionHeader, EndTransactionHeader
from reput_protocol.names import TRANS_HALF_TOPIC
from reput_protocol.properties import encode_properties
from reput_protocol.record.message_id import decode_offset_message_id
from reput_protocol.record.record import Record, decode_record
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType, Value
from support.inside import parts_of, storage_of
from support.member_fakes import FakeClient
from support.stores import copied_as_killed

T0 = 1_700_000_000_000
SMALL_STORE = {"commit_log_file_size": "1MiB", "consume_queue_entries": 1000, "index_slots": 100, "index_entries": 1000}
_NO_ANSWER_S = 5.0
_versions = {HeaderType.MSGPACK: 1, HeaderType.JSON: 479, HeaderType.BINARY: 479}


class BenchClient(FakeClient):
    """A client whose requests are answered."""

    def __init__(self, bench: BrokerBench, header_type: int, client_id: str) -> None:
        super().__init__(header_type)
        self.client_id = client_id
        self._bench = bench
        self._answers: dict[int, Response] = {}
        self._answered = trio.Event()

    def answer(self, request: Request, response: Response) -> None:
        if not request.is_answered:
            request.is_answered = True
            if not request.is_oneway:
                self._answers[request.header.opaque] = response
            self._answered.set()
            self._answered = trio.Event()

    def spawn(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._bench.nursery.start_soon(work, *arguments)

    async def ask(
        self,
        code: int,
        ext: Mapping[str, Value],
        body: bytes = b"",
        *,
        version: int | None = None,
        oneway: bool = False,
    ) -> Response | None:
        """Send a request; return its answer, or None if none comes."""
        flag = ONEWAY_FLAG if oneway else 0
        if version is None:
            version = _versions[HeaderType(self.header_type)]
        opaque = next(self._bench.opaques)
        header = Header(code, opaque, flag, None, dict(ext), LanguageCode.PYTHON, version)
        counters = self._bench.broker.counters.requests[self.header_type, code]
        request = Request(self, self.header_type, header, memoryview(body), time.monotonic(), counters)
        request.principal = self.principal
        handling = self._bench.parts.server.handling
        result = await handling.handle_alone(request)
        if result is not None:
            return None if oneway else result
        with trio.move_on_after(_NO_ANSWER_S):
            while not request.is_answered and not request.is_oneway:
                await self._answered.wait()
        return self._answers.pop(opaque, None)

    # What clients ask for

    async def heartbeat(self, *producer_groups: str) -> None:
        body = HeartbeatData(self.client_id, [], [ProducerData(group) for group in producer_groups]).to_json()
        response = await self.ask(RequestCode.HEART_BEAT, {}, body)
        assert response is not None
        assert response.code == 0

    def send_header(self, topic: str, properties: Mapping[str, str], **fields: Any) -> SendMessageHeader:
        values = {"queue_id": 0, "born_timestamp": self._bench.now_ms, **fields}
        return SendMessageHeader("PG", topic, properties=encode_properties(properties).decode(), **values)

    async def send(
        self, topic: str, body: bytes, properties: Mapping[str, str] | None = None, **fields: Any
    ) -> Response:
        """Send one message as 310."""
        header = self.send_header(topic, properties or {}, **fields)
        response = await self.ask(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(self.header_type), body)
        assert response is not None
        return response

    async def send_half(
        self,
        topic: str,
        body: bytes,
        *,
        group: str = "shop",
        properties: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Half:
        """Begin a transaction."""
        found = {"TRAN_MSG": "true", "PGROUP": group, **(properties or {})}
        response = await self.send(topic, body, found, sys_flag=4, **fields)
        assert response.code == 0, response.remark
        result = SendMessageResult.from_ext(response.ext)
        _, physical_offset = decode_offset_message_id(result.msg_id)
        return Half(group, result.queue_offset, physical_offset, result.transaction_id or "", result.msg_id)

    async def end(
        self,
        half: Half,
        state: TransactionState,
        *,
        from_check: bool = False,
        oneway: bool = False,
        group: str | None = None,
    ) -> Response | None:
        """End a transaction."""
        header = EndTransactionHeader(
            group or half.group,
            half.queue_offset,
            half.physical_offset,
            int(state),
            from_check,
            half.unique_key,
            half.unique_key,
        )
        return await self.ask(RequestCode.END_TRANSACTION, header.to_ext(self.header_type), oneway=oneway)

    def checks(self) -> list[tuple[Half, Record]]:
        """What the broker has asked about since the last look: the half message, and the record that came along."""
        asked = [
            (CheckTransactionHeader.from_ext(ext), decode_record(body))
            for code, ext, body in self.sent
            if code == RequestCode.CHECK_TRANSACTION_STATE
        ]
        self.sent.clear()
        return [
            (
                Half(
                    record.property_map().get("PGROUP", ""),
                    header.tran_state_table_offset,
                    header.commit_log_offset,
                    header.transaction_id or "",
                    header.offset_msg_id or "",
                ),
                record,
            )
            for header, record in asked
        ]

    async def send_back(self, record: Record, group: str, delay_level: int = 0, **fields: Any) -> Response:
        """Send a message back as its consumer does."""
        version = fields.pop("version", None)
        header = SendBackHeader(record.physical_offset, group, delay_level, **fields)
        ext = header.to_ext(self.header_type)
        response = await self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, version=version)
        assert response is not None
        return response


class Half:
    """A half message as its producer knows it."""

    def __init__(self, group: str, queue_offset: int, physical_offset: int, unique_key: str, message_id: str) -> None:
        self.group = group
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.unique_key = unique_key
        self.message_id = message_id


class BrokerBench:
    """One broker on one directory."""

    def __init__(self, broker: Broker, nursery: trio.Nursery, skew_ms: Callable[[], int]) -> None:
        self.broker = broker
        self.nursery = nursery
        self.opaques = count(1)
        self._skew_ms = skew_ms
        self._clients = count(1)

    @property
    def now_ms(self) -> int:
        return self._skew_ms()

    @property
    def storage(self) -> Storage:
        return storage_of(self.broker)

    @property
    def tables(self) -> Tables:
        return self.storage.tables

    @property
    def parts(self) -> MasterParts:
        return parts_of(self.broker)

    def client(self, header_type: int = HeaderType.JSON) -> BenchClient:
        """A client on its own connection."""
        return BenchClient(self, header_type, f"client-{next(self._clients)}")

    def gone(self, client: BenchClient) -> None:
        """The client's connection ends."""
        client.close("peer")
        self.parts._common._client_gone(client)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass: most of it at once, the last second as it comes, so that hours take no time."""
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        if seconds > 1:
            clock.jump(seconds - 1)
        await trio.sleep(min(seconds, 1))

    async def settled(self) -> None:
        """Wait until everything that was put is on the disk and can be read."""
        store = self.broker.store
        while store.flush_behind_bytes or not store.dispatch_is_idle():
            await trio.sleep(0.001)

    async def read(self, topic: str, queue_id: int = 0, offset: int | None = None) -> list[Record]:
        """Every message of a queue."""
        await self.settled()
        store = self.broker.store
        records: list[Record] = []
        at = store.min_offset_in_queue(topic, queue_id) if offset is None else offset
        while at < store.max_offset_in_queue(topic, queue_id):
            found = store.get_message(topic, queue_id, at, 1, 1 << 20)
            data = store.message_at(found.extents[0].physical_offset)
            assert data is not None
            records.append(decode_record(data))
            at = found.next_begin_offset
        return records

    async def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """The bodies of a queue."""
        return [record.body for record in await self.read(topic, queue_id)]

    async def half_records(self) -> list[Record]:
        """The half queue."""
        return await self.read(TRANS_HALF_TOPIC)

    async def create_topic(self, topic: str, queues: int = 1) -> None:
        ext: dict[str, Value] = {
            "topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6",
            "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        response = await self.client().ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        assert response is not None
        assert response.code == 0, response.remark

    def killed(self, image: Path) -> Path:
        """The directory as `kill -9` leaves it at this moment; the broker itself continues."""
        return copied_as_killed(self.broker.config.data_dir, image)


@asynccontextmanager
async def broker_bench(data_dir: Path, *, at_ms: int = T0, **sections: Any) -> AsyncIterator[BrokerBench]:
    """Run a broker on a directory; `at_ms` is the wall clock's time now, from where it follows trio's clock."""
    began = trio.current_time()

    def clock_ms() -> int:
        return at_ms + round((trio.current_time() - began) * 1000)

    store = {**SMALL_STORE, **sections.pop("store", {})}
    config = BrokerConfig(data_dir=data_dir, port=0, store=store, **sections)
    surroundings = Surroundings(
        clock_ms=clock_ms, monotonic_ms=clock_ms, local_hour=lambda: 12, disk_usage=lambda _: 0.1
    )
    async with Broker(config, surroundings=surroundings) as broker, trio.open_nursery() as nursery:
        yield BrokerBench(broker, nursery, clock_ms)
        nursery.cancel_scope.cancel()
