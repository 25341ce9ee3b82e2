"""Consumer groups as a fake broker keeps them: members by connection, notifications, queue locks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.group import ConsumerList, HeartbeatData, LockBatchBody, LockBatchResult
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType

Reply = tuple[int, dict[str, Any], bytes, str | None]


@dataclass(eq=False)
class Peer:
    """One connection."""

    send: Callable[[bytes], None]
    client_ids: dict[str, str] = field(default_factory=dict)


class FakeGroups:
    """Who is a member of which group, and who has which lock.

    Attributes:
        notify: False keeps changes quiet.
        heartbeats: every one that came.
    """

    CODES: ClassVar = frozenset(
        {
            RequestCode.HEART_BEAT,
            RequestCode.UNREGISTER_CLIENT,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.LOCK_BATCH_MQ,
            RequestCode.UNLOCK_BATCH_MQ,
        }
    )

    def __init__(self) -> None:
        self.notify = True
        self.lock_timeout_s = 60.0
        self.heartbeats: list[HeartbeatData] = []
        self.locks: dict[tuple[str, MessageQueue], tuple[str, float]] = {}
        self._members: dict[str, dict[Peer, str]] = {}
        self._mutex = threading.RLock()

    def members(self, group: str) -> list[str]:
        """Return the client ids of a group."""
        with self._mutex:
            return list(self._members.get(group, {}).values())

    def add_stranger(self, group: str, client_id: str) -> Peer:
        """Make a member that only the fake knows, and tell the others."""
        peer = Peer(lambda _frame: None)
        self._join(peer, group, client_id)
        return peer

    def gone(self, peer: Peer) -> None:
        """A connection has ended."""
        with self._mutex:
            groups = [group for group, members in self._members.items() if peer in members]
        for group in groups:
            self._leave(peer, group)

    def tell(self, group: str) -> None:
        """Notify every member of a group."""
        header = Header(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 1, ONEWAY_FLAG, ext={"consumerGroup": group}, version=1
        )
        with self._mutex:
            peers = list(self._members.get(group, {}))
        for peer in peers if self.notify else []:
            peer.send(encode_frame(header, HeaderType.MSGPACK, b""))

    def answer(self, peer: Peer, header: Header, body: memoryview) -> Reply:
        """Answer one of `CODES`."""
        match header.code:
            case RequestCode.HEART_BEAT:
                data = HeartbeatData.from_json(body)
                self.heartbeats.append(data)
                for consumer in data.consumers:
                    self._join(peer, consumer.group_name, data.client_id)
                return 0, {}, b"", None
            case RequestCode.UNREGISTER_CLIENT:
                self._leave(peer, str(header.ext["consumerGroup"]))
                return 0, {}, b"", None
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                members = self.members(str(header.ext["consumerGroup"]))
                if not members:
                    return ResponseCode.SYSTEM_ERROR, {}, b"", "no consumer for this group"
                return 0, {}, ConsumerList(members).to_json(), None
            case RequestCode.LOCK_BATCH_MQ:
                return 0, {}, LockBatchResult(self._lock(LockBatchBody.from_json(body))).to_json(), None
        self._unlock(LockBatchBody.from_json(body))
        return 0, {}, b"", None

    def _join(self, peer: Peer, group: str, client_id: str) -> None:
        with self._mutex:
            members = self._members.setdefault(group, {})
            is_new = peer not in members
            members[peer] = client_id
        if is_new:
            self.tell(group)

    def _leave(self, peer: Peer, group: str) -> None:
        with self._mutex:
            was_there = self._members.get(group, {}).pop(peer, None)
        if was_there is not None:
            self.tell(group)

    def _lock(self, body: LockBatchBody) -> list[MessageQueue]:
        now = time.monotonic()
        locked = []
        with self._mutex:
            for queue in body.queues:
                owner, until = self.locks.get((body.consumer_group, queue), ("", 0.0))
                if owner in ("", body.client_id) or until < now:
                    self.locks[body.consumer_group, queue] = (body.client_id, now + self.lock_timeout_s)
                    locked.append(queue)
        return locked

    def _unlock(self, body: LockBatchBody) -> None:
        with self._mutex:
            for queue in body.queues:
                if self.locks.get((body.consumer_group, queue), ("", 0.0))[0] == body.client_id:
                    del self.locks[body.consumer_group, queue]
