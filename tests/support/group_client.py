"""A minimal member of a consumer group: heartbeats, pulls and commits over one socket.

It speaks any header type, keeps the broker's requests apart from answers, and answers only on demand.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from reput_protocol.codes import MessageModel, PullSysFlag, RequestCode
from reput_protocol.commands.base import CommandHeader
from reput_protocol.commands.group import (
    ConsumerData,
    ConsumerList,
    ConsumerListHeader,
    HeartbeatData,
    LockBatchBody,
    LockBatchResult,
    ProducerData,
    SubscriptionData,
    UnregisterClientHeader,
)
from reput_protocol.commands.offset import QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from reput_protocol.commands.pull import PullMessageHeader
from reput_protocol.names import retry_topic
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import RESPONSE_FLAG, Header, HeaderType, Value
from support.raw_client import TIMEOUT_S, RawClient
from support.typed_requests import code_of


class GroupClient(RawClient):
    """One client; `asked` is the broker's requests that were not read yet."""

    def __init__(self, address: str, client_id: str, group: str = "g", header_type: int = HeaderType.MSGPACK) -> None:
        super().__init__(address, header_type)
        self.client_id = client_id
        self.group = group
        self.asked: list[tuple[Header, bytes]] = []

    # The two directions

    def request(
        self, code: int, ext: Mapping[str, Value] | None = None, body: bytes = b"", *, flag: int = 0
    ) -> tuple[Header, bytes]:
        opaque = self.send(code, ext, body, flag=flag)
        return self.answer_to(opaque)

    def answer_to(self, opaque: int) -> tuple[Header, bytes]:
        """Wait for the answer to a request that was sent; what the broker asks meanwhile is kept."""
        while True:
            header, body, _ = self.receive()
            if header.flag & RESPONSE_FLAG:
                assert header.opaque == opaque, header
                return header, body
            self.asked.append((header, body))

    def ask(self, command: CommandHeader, body: bytes = b"", code: int | None = None) -> tuple[Header, bytes]:
        """Send a typed request and return any answer."""
        return self.request(code or code_of(type(command)), command.to_ext(self.header_type), body)

    def next_asked(self, code: int, timeout_s: float = TIMEOUT_S) -> tuple[Header, bytes]:
        """Return the next request of the broker with this code; raise TimeoutError if none comes in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            for index, (header, body) in enumerate(self.asked):
                if header.code == code:
                    del self.asked[index]
                    return header, body
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the broker has not asked {code} within {timeout_s} s")
            self._socket.settimeout(left)
            try:
                header, body, _ = self.receive()
            except TimeoutError:
                continue
            finally:
                self._socket.settimeout(TIMEOUT_S)
            assert not header.flag & RESPONSE_FLAG, header
            self.asked.append((header, body))

    def is_asked(self, code: int, timeout_s: float) -> bool:
        """Tell whether the broker asks this within a time."""
        try:
            self.next_asked(code, timeout_s)
        except TimeoutError:
            return False
        return True

    def reply(self, asked: Header, code: int = 0, body: bytes = b"", **ext: Value) -> None:
        """Answer a request of the broker."""
        header = Header(code, asked.opaque, RESPONSE_FLAG, None, ext)
        self.send_bytes(encode_frame(header, self.header_type, body))

    def reset(self) -> None:
        """End the connection with a reset instead of an orderly close."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    # What members do

    def heartbeat(
        self,
        *topics: str,
        version: int = 1,
        model: MessageModel = MessageModel.CLUSTERING,
        producers: tuple[str, ...] = (),
        expressions: Mapping[str, str] | None = None,
    ) -> Header:
        """Say that it is a member, with topics wanted whole and topics with a tag expression; return the answer."""
        wanted = {**dict.fromkeys(topics, "*"), **(expressions or {})}
        subscriptions = [SubscriptionData.of(topic, text, version) for topic, text in wanted.items()]
        if wanted:
            subscriptions.append(SubscriptionData.of(retry_topic(self.group), "*", version))
        consumers = [ConsumerData(self.group, message_model=model, subscriptions=subscriptions)]
        data = HeartbeatData(self.client_id, consumers if wanted else [], [ProducerData(group) for group in producers])
        header, _ = self.request(RequestCode.HEART_BEAT, {}, data.to_json())
        return header

    def leave(self) -> None:
        """Say that it is no member any more."""
        header, _ = self.ask(UnregisterClientHeader(self.client_id, consumer_group=self.group))
        assert header.code == 0, header

    def members(self) -> list[str]:
        """Return the ids of the group's members, as this one sees them."""
        header, body = self.ask(ConsumerListHeader(self.group))
        assert header.code == 0, header
        return sorted(ConsumerList.from_json(body).consumer_ids)

    def lock(self, topic: str, *queue_ids: int) -> list[int]:
        """Lock queues; return those that are its own now."""
        body = self._locks(topic, queue_ids)
        header, answer = self.request(RequestCode.LOCK_BATCH_MQ, {}, body)
        assert header.code == 0, header
        return [queue.queue_id for queue in LockBatchResult.from_json(answer).locked]

    def unlock(self, topic: str, *queue_ids: int) -> None:
        """Give locks back."""
        header, _ = self.request(RequestCode.UNLOCK_BATCH_MQ, {}, self._locks(topic, queue_ids))
        assert header.code == 0, header

    def _locks(self, topic: str, queue_ids: tuple[int, ...]) -> bytes:
        queues = [MessageQueue(topic, "broker-a", queue_id) for queue_id in queue_ids]
        return LockBatchBody(self.client_id, self.group, queues).to_json()

    def pull_header(self, topic: str, offset: int, **more: Any) -> PullMessageHeader:
        """Return a pull of queue 0 by the group's own subscription."""
        return PullMessageHeader(self.group, topic, 0, offset, 32, **more)

    def pull(self, topic: str, offset: int, **more: Any) -> tuple[Header, bytes]:
        """Pull by the group's own subscription."""
        return self.ask(self.pull_header(topic, offset, **more))

    def hold(self, topic: str, offset: int, wait_s: float = 20.0) -> int:
        """Send a pull that waits, and see to it that it does; return its number for `answer_to`."""
        header = self.pull_header(
            topic, offset, sys_flag=PullSysFlag.SUSPEND, suspend_timeout_millis=int(wait_s * 1000)
        )
        opaque = self.send(RequestCode.PULL_MESSAGE, header.to_ext(self.header_type))
        self.members()  # one connection's requests are begun in order
        return opaque

    def commit(self, topic: str, offset: int, queue_id: int = 0) -> Header:
        """Commit an offset; return the answer."""
        return self.ask(UpdateConsumerOffsetHeader(self.group, topic, queue_id, offset))[0]

    def committed(self, topic: str, queue_id: int = 0) -> int | None:
        """Return the committed offset, None if there is none."""
        header, _ = self.ask(QueryConsumerOffsetHeader(self.group, topic, queue_id, False))
        return None if header.code else int(str(header.ext["offset"]))


Connect = Callable[..., GroupClient]
"""Returns a client, given its id and, if they are others, its header type and group."""


@contextmanager
def group_clients(address: str, group: str, header_type: int) -> Iterator[Connect]:
    """Yield a function that connects clients, until the end of the block."""
    clients: list[GroupClient] = []

    def connect(client_id: str, kind: int = header_type, group: str = group) -> GroupClient:
        clients.append(GroupClient(address, client_id, group, kind))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()
