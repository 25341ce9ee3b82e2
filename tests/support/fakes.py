"""A small broker over a real loopback socket, in a thread, that tests can make slow, silent, faulty or wrong."""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from reput_protocol.codes import OWN_REQUEST_CODE_MIN, LanguageCode, RequestCode, ResponseCode
from reput_protocol.commands.pull import QueueBounds, QueueBoundsRequest, QueueBoundsTable
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.commands.topic import BrokerData, ClusterInfo, QueueData, TopicRoute
from reput_protocol.kernel.records import record_starts
from reput_protocol.properties import encode_properties
from reput_protocol.record.message_id import Host, offset_message_id_of
from reput_protocol.record.put_block import BatchItem, BlockCheck, check_put_block, decode_batch, encode_block
from reput_protocol.record.record import Record, encode_record
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import RESPONSE_FLAG, Header, HeaderType
from support.fake_groups import FakeGroups, Peer
from support.stored_blocks import patch_block
from support.waiting import can_read


@dataclass
class Answer:
    """What the fake says to one request."""

    code: int = ResponseCode.SUCCESS
    ext: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None


SILENCE = Answer(code=-1)
"""No answer ever comes."""
HANG_UP = Answer(code=-2)
"""The connection is closed instead of an answer."""
_UNKNOWN_TO_ROCKETMQ = Answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="request type is not supported")

_OF_MASTERS = frozenset(
    {
        RequestCode.PUT_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    }
)
_READS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.FETCH_RECORDS})

Behaviour = Callable[[Header, memoryview], Answer]


class FakeBroker:
    """Keeps messages of any topic in memory, 2 queues each; `behave` replaces what one request code does.

    `receive_buffer` limits the bytes that the operating system receives for a connection that is not read.

    Attributes:
        requests: every header received, in order.
        responses: what clients answered to `ask`, in order.
        parked: header fields and body of every message that came alone (310).
        accepted: how many connections were made.
        is_rocketmq: whether it behaves as RocketMQ's: it reads JSON headers only, and knows no native request.
        is_slave, serves_reads: whether it refuses what only a master does; and whether a slave answers pulls.
        is_stuck: whether it answers nothing, on connections that its system accepts.
        suggests: the id of the broker's member that its answers to pulls suggest.
        committed, commits: the offsets of groups by topic and queue; every commit that came, also ignored ones.
        groups: who is a member of which group, and who has which lock.
    """

    def __init__(
        self, *, queues: int = 2, unknown_topics: frozenset[str] = frozenset(), receive_buffer: int | None = None
    ) -> None:
        self.queues = queues
        self.unknown_topics = set(unknown_topics)
        self.requests: list[Header] = []
        self.responses: list[tuple[Header, bytes]] = []
        self.parked: list[tuple[dict[str, Any], bytes]] = []
        self.accepted = 0
        self.log: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.committed: dict[tuple[str, str, int], int] = {}
        self.commits: list[tuple[str, str, int, int]] = []
        self.broker_name = "fake"
        self.is_rocketmq = False
        self.is_slave = False
        self.is_stuck = False
        self.serves_reads = False
        self.suggests = 0
        self.flush_disk_type = "ASYNC_FLUSH"
        self.route_address: str | None = None
        self._log_bytes = 0
        self._behaviours: dict[int, Behaviour] = {}
        self._connections: list[socket.socket] = []
        self.groups = FakeGroups()
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        if receive_buffer is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def behave(self, code: int, behaviour: Behaviour | Answer | None) -> None:
        """Answer requests of `code` in the given way; None restores the ordinary way."""
        if behaviour is None:
            self._behaviours.pop(code, None)
        elif isinstance(behaviour, Answer):
            answer = behaviour
            self._behaviours[code] = lambda _header, _body: answer
        else:
            self._behaviours[code] = behaviour

    def hold_puts(self, answer: Answer | None = None) -> threading.Event:
        """Answer puts, with `answer` or in the ordinary way, only once the event that is returned is set."""
        going_on = threading.Event()

        def put(header: Header, body: memoryview) -> Answer:
            going_on.wait(30.0)
            return self.put(header, body) if answer is None else answer

        self.behave(RequestCode.PUT_MESSAGE, put)
        return going_on

    def count(self, code: int) -> int:
        """How many requests of `code` have come."""
        return sum(header.code == code for header in self.requests)

    def ask(
        self,
        code: int,
        ext: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        opaque: int = 1 << 30,
        flag: int = 0,
        header_type: int = HeaderType.MSGPACK,
    ) -> None:
        """Send a request to every client that is connected."""
        frame = encode_frame(Header(code, opaque, flag, ext=dict(ext or {}), version=1), header_type, body)
        with self._lock:
            for connection in self._connections:
                connection.sendall(frame)

    def response(self, timeout_s: float = 10.0) -> tuple[Header, bytes]:
        """Wait for the next answer of a client and return it."""
        deadline = time.monotonic() + timeout_s
        with self._arrived:
            while not self.responses:
                assert self._arrived.wait(deadline - time.monotonic()), "no client answered"
            return self.responses.pop(0)

    def wait_unread(self, timeout_s: float = 30.0) -> None:
        """Wait until a client has sent something that was not read yet."""
        with self._lock:
            connections = list(self._connections)
        assert can_read(*connections, within_s=timeout_s), "no client sent anything"

    def drop_connections(self) -> None:
        """Close all connections."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Stop listening and hang up."""
        self._closing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        # First the acceptor ends: a connection it took a moment ago must be among those that are hung up on.
        self._thread.join(5)
        self.drop_connections()
        with self._arrived:
            self._arrived.notify_all()

    def replicate_to(self, slave: FakeBroker) -> None:
        """Share messages and offsets with another fake, at once."""
        slave.log, slave.committed = self.log, self.committed
        slave._lock, slave._arrived = self._lock, self._arrived

    def restart(self) -> None:
        """Listen again at the same address; messages and offsets are kept."""
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._thread.start()

    # -- connections -----------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.accepted += 1
                self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = FrameReader()
        writing = threading.Lock()

        def send(frame: bytes) -> None:
            with writing, suppress(OSError):
                connection.sendall(frame)

        peer = Peer(send)
        try:
            while data := connection.recv(1 << 16):
                for header_type, head, body in reader.receive_data(data):
                    if self.is_rocketmq and header_type != HeaderType.JSON:
                        return  # RocketMQ closes the connection
                    header = decode_header(header_type, head)
                    if header.is_response:
                        with self._arrived:
                            self.responses.append((header, bytes(body)))
                            self._arrived.notify_all()
                        continue
                    with self._lock:
                        self.requests.append(header)
                    if header.is_oneway:
                        continue
                    if header.code == RequestCode.PULL_MESSAGE:
                        # A pull may wait; it must not hold up the requests behind it.
                        threading.Thread(
                            target=self._answer, args=(connection, peer, header_type, header, body), daemon=True
                        ).start()
                    elif not self._answer(connection, peer, header_type, header, body):
                        return
        except OSError:
            pass
        finally:
            with self._lock:
                self._connections.remove(connection)
            connection.close()
            self.groups.gone(peer)

    def _answer(
        self, connection: socket.socket, peer: Peer, header_type: int, header: Header, body: memoryview
    ) -> bool:
        behaviour = self._behaviours.get(header.code)
        if self.is_stuck:
            answer = SILENCE
        elif self.is_slave and (header.code in _OF_MASTERS or (header.code in _READS and not self.serves_reads)):
            answer = Answer(ResponseCode.SYSTEM_BUSY, remark="NOT_MASTER: this fake is a slave")
        elif behaviour is not None:
            answer = behaviour(header, body)
        elif self.is_rocketmq and header.code not in FakeGroups.CODES:
            answer = self._rocketmqs(header, body)
        elif header.code in FakeGroups.CODES:
            answer = Answer(*self.groups.answer(peer, header, body))
        else:
            answer = self._ordinary(header, body)
        if answer is HANG_UP:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            return False
        if answer is not SILENCE:
            language = LanguageCode.JAVA if self.is_rocketmq else LanguageCode.PYTHON
            reply = Header(
                int(answer.code),
                header.opaque,
                RESPONSE_FLAG,
                answer.remark,
                dict(answer.ext),
                language=int(language),
                version=1,
            )
            peer.send(encode_frame(reply, header_type, answer.body))
        return True

    # -- the ordinary way ------------------------------------------------------------------------------------------

    def _ordinary(self, header: Header, body: memoryview) -> Answer:
        ext = header.ext
        match header.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return self._route(str(ext["topic"]))
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                cluster = ClusterInfo({self.broker_name: self._broker_data()}, {"c": [self.broker_name]})
                return Answer(body=cluster.to_json())
            case RequestCode.PUT_MESSAGE:
                return self.put(header, body)
            case RequestCode.SEND_MESSAGE_V2:
                return self.park(header, body)
            case RequestCode.PULL_MESSAGE:
                return self.pull(header, body)
            case RequestCode.FETCH_RECORDS:
                return self.fetch(header)
            case RequestCode.QUERY_QUEUE_BOUNDS:
                topics = QueueBoundsRequest.from_json(body).topics
                bounds = {
                    topic: [QueueBounds(number, 0, len(self.log[topic, number])) for number in range(self.queues)]
                    for topic in topics
                }
                return Answer(body=QueueBoundsTable(self.broker_name, bounds).to_json())
            case RequestCode.QUERY_CONSUMER_OFFSET:
                offset = self.committed.get((str(ext["consumerGroup"]), str(ext["topic"]), int(str(ext["queueId"]))))
                if offset is None:
                    return Answer(ResponseCode.QUERY_NOT_FOUND, remark="NOT_FOUND: none")
                return Answer(ext={"offset": offset})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self._commit(ext, increase_only=bool(ext.get("increaseOnly")))
                return Answer()
            case RequestCode.GET_MIN_OFFSET:
                return Answer(ext={"offset": 0})
            case RequestCode.GET_MAX_OFFSET | RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                return Answer(ext={"offset": len(self.log[str(ext["topic"]), int(str(ext["queueId"]))])})
        return Answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="UNSUPPORTED_REQUEST: the fake does not know it")

    def _rocketmqs(self, header: Header, body: memoryview) -> Answer:
        """Answer as RocketMQ's broker: sends are 310 and 320, native requests and those of name servers unknown."""
        match header.code:
            case RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
                return self._take(header, body)
            case RequestCode.GET_BROKER_CONFIG:
                return Answer(body=f"brokerRole=ASYNC_MASTER\nflushDiskType={self.flush_disk_type}\n".encode())
            case RequestCode.GET_BROKER_CLUSTER_INFO | RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return _UNKNOWN_TO_ROCKETMQ
        return self._ordinary(header, body) if header.code < OWN_REQUEST_CODE_MIN else _UNKNOWN_TO_ROCKETMQ

    def _take(self, header: Header, body: memoryview) -> Answer:
        sent = SendMessageHeader.from_ext_v2(header.ext)
        if header.code == RequestCode.SEND_BATCH_MESSAGE:
            items = decode_batch(bytes(body))
        else:
            items = [BatchItem(sent.flag, bytes(body), sent.properties.encode())]
        with self._lock:
            queue = self.log[sent.topic, sent.queue_id]
            first = len(queue)
            ids = []
            for item in items:
                record = encode_record(
                    Record(
                        sent.topic,
                        item.body,
                        queue_id=sent.queue_id,
                        queue_offset=len(queue),
                        physical_offset=self._log_bytes,
                        flag=item.flag,
                        sys_flag=sent.sys_flag,
                        store_host=Host.parse(self.address),
                        # RocketMQ adds the header's properties of a batch to each of its messages.
                        properties=item.properties + b"CLUSTER\x01c\x02",
                    )
                )
                ids.append(offset_message_id_of(Host.parse(self.address).packed(), self._log_bytes))
                self._log_bytes += len(record)
                queue.append(bytes(record))
        return Answer(ext={"msgId": ",".join(ids), "queueId": sent.queue_id, "queueOffset": first})

    def _commit(self, ext: Mapping[str, Any], *, increase_only: bool) -> None:
        key = (str(ext["consumerGroup"]), str(ext["topic"]), int(str(ext["queueId"])))
        with self._lock:
            offset = int(str(ext["commitOffset"]))
            if not increase_only or offset > self.committed.get(key, -1):
                self.committed[key] = offset
            self.commits.append((*key, offset))

    def _route(self, topic: str) -> Answer:
        if topic in self.unknown_topics:
            return Answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"NO_TOPIC: no topic {topic}")
        route = TopicRoute(
            queue_datas=[QueueData(self.broker_name, self.queues, self.queues, 6, 0)],
            broker_datas=[self._broker_data()],
        )
        return Answer(body=route.to_json())

    def _broker_data(self) -> BrokerData:
        return BrokerData("c", self.broker_name, {0: self.route_address or self.address})

    def put(self, header: Header, body: memoryview) -> Answer:
        """Store a block as a broker would."""
        topic, queue_id = str(header.ext["topic"]), int(str(header.ext["queueId"]))
        block = bytearray(body)
        check = check_put_block(block, topic=topic, queue_id=queue_id, count=int(str(header.ext["count"])))
        first, place, now = self._append(topic, queue_id, block, check)
        return Answer(
            ext={
                "queueId": queue_id,
                "queueOffset": first,
                "physicalOffset": place,
                "storeTimestamp": now,
                "storeHost": self.address,
                "ack": header.ext["ack"],
            }
        )

    def _append(self, topic: str, queue_id: int, block: bytearray, check: BlockCheck) -> tuple[int, int, int]:
        with self._arrived:
            self.unknown_topics.discard(topic)
            queue = self.log[topic, queue_id]
            first, place, now = len(queue), self._log_bytes, time.time_ns() // 1_000_000
            patch_block(
                block,
                check,
                first_queue_offset=first,
                first_physical_offset=place,
                store_timestamp_ms=now,
                born_host=bytes(8),
                store_host=socket.inet_aton("127.0.0.1") + self.port.to_bytes(4, "big"),
            )
            bounds = [*record_starts(block, 0, len(block)), len(block)]
            queue += [bytes(block[start:end]) for start, end in pairwise(bounds)]
            self._log_bytes += len(block)
            self._arrived.notify_all()
        return first, place, now

    def store(self, topic: str, *bodies: bytes, queue_id: int = 0, **properties: str) -> None:
        """Store messages that a producer has sent, or the broker has made."""
        block, _ = encode_block(bodies, [encode_properties(properties)], topic, queue_id, 0)
        self._append(topic, queue_id, block, BlockCheck(len(bodies)))

    def park(self, header: Header, body: memoryview) -> Answer:
        """Keep a message that came alone, as a broker keeps a delayed one."""
        with self._lock:
            self.parked.append((dict(header.ext), bytes(body)))
            number = len(self.parked) - 1
        host = socket.inet_aton("127.0.0.1") + self.port.to_bytes(4, "big")
        return Answer(
            ext={
                "msgId": offset_message_id_of(host, 1000 * number),
                "queueId": header.ext["e"],
                "queueOffset": number,
                "storeTimestamp": 1_700_000_000_000,
                "ack": header.ext.get("ack"),
            }
        )

    def fetch(self, header: Header) -> Answer:
        """Answer FETCH_RECORDS with one message at a time."""
        ext: Mapping[str, Any] = header.ext
        queue, start = self.log[str(ext["topic"]), int(ext["queueId"])], int(ext["startOffset"])
        records = queue[start : start + 1]
        found = {"nextOffset": start + len(records), "minOffset": 0, "maxOffset": len(queue)}
        return Answer(ResponseCode.SUCCESS if records else ResponseCode.PULL_NOT_FOUND, found, b"".join(records))

    def pull(self, header: Header, body: memoryview) -> Answer:
        """Answer a pull as a broker would."""
        del body
        ext: Mapping[str, Any] = header.ext
        if int(ext["sysFlag"]) & 1:
            self._commit(ext, increase_only=True)
        queue = self.log[str(ext["topic"]), int(ext["queueId"])]
        offset = int(ext["queueOffset"])
        deadline = time.monotonic() + int(ext["suspendTimeoutMillis"]) / 1000
        with self._arrived:
            while len(queue) == offset and time.monotonic() < deadline and not self._closing:
                self._arrived.wait(max(0.0, deadline - time.monotonic()))
            if self._closing:
                return HANG_UP  # else a pull that begins to wait during a stop would be answered
            bounds = {"minOffset": 0, "maxOffset": len(queue), "suggestWhichBrokerId": self.suggests}
            if offset > len(queue) and self.is_slave:
                return Answer(ResponseCode.PULL_RETRY_IMMEDIATELY, {**bounds, "nextBeginOffset": len(queue)})
            if offset > len(queue):
                return Answer(ResponseCode.PULL_OFFSET_MOVED, {**bounds, "nextBeginOffset": len(queue)})
            records = queue[offset : offset + int(ext["maxMsgNums"])]
            bounds["nextBeginOffset"] = offset + len(records)
            return Answer(ResponseCode.SUCCESS if records else ResponseCode.PULL_NOT_FOUND, bounds, b"".join(records))
