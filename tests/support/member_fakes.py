"""Connections and heartbeats for tests of groups: what a client was sent, without any socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any

import trio

from reput_broker.groups.client_table import ClientChannel
from reput_broker.remoting.request import ClientAnswer, Principal, Request, Response
from reput_protocol.codes import LanguageCode, MessageModel
from reput_protocol.commands.group import ConsumerData, SubscriptionData
from reput_protocol.wire.header import HeaderType, Value
from reput_protocol.wire.signature import SignatureChecker

_ports = count(40_000)


class FakeClient:
    """A connection (see `request.Client`) that remembers what it was sent, and can be full or gone."""

    def __init__(self, header_type: int = HeaderType.JSON) -> None:
        self.peer = f"10.0.0.1:{next(_ports)}"
        self.header_type: int = header_type
        self.born_host = bytes(8)
        self.dialled_address = "10.0.0.2:10911"
        self.opened_at = 0.0
        self.is_local = True
        self.principal: Principal | None = None
        self.signatures: SignatureChecker | None = None
        self.unauthenticated = 0
        self.sent: list[tuple[int, dict[str, Value], bytes]] = []
        self.is_full = False
        self.share = 1 << 24
        self.is_crowded = False
        self.has_drained = trio.Event()
        self.closed_for: str | None = None
        self.role = "unknown"
        self.answers: list[ClientAnswer | Exception] = []
        self.calls: list[tuple[int, dict[str, Value], bytes]] = []

    @property
    def is_closed(self) -> bool:
        return self.closed_for is not None

    async def drained(self) -> None:
        await self.has_drained.wait()

    def send_request(self, code: int, ext: Mapping[str, Value], body: bytes = b"") -> bool:
        if self.is_full or self.is_closed:
            return False
        self.sent.append((code, dict(ext), body))
        return True

    async def call(self, code: int, ext: Mapping[str, Value], body: bytes = b"", *, timeout_s: float) -> ClientAnswer:
        self.calls.append((code, dict(ext), body))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self, reason: str) -> None:
        self.closed_for = self.closed_for or reason

    def note_role(self, role: str) -> None:
        self.role = role

    def answer(self, request: Request, response: Response) -> None:
        raise NotImplementedError

    def held_elsewhere(self, request: Request) -> None:
        pass

    def flush(self) -> None:
        pass

    def spawn(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        raise NotImplementedError

    @property
    def codes(self) -> list[int]:
        """The codes of the requests that it was sent."""
        return [code for code, _, _ in self.sent]


def channel_of(client_id: str, client: FakeClient | None = None) -> ClientChannel:
    """A client as the tables know it."""
    return ClientChannel(client or FakeClient(), client_id, LanguageCode.PYTHON, 1, 0.0)


def consumer_data(
    group: str, *topics: str, version: int = 1, model: MessageModel = MessageModel.CLUSTERING, **expressions: str
) -> ConsumerData:
    """What a heartbeat says of one group: topics wanted whole, and topics with a tag expression."""
    subscriptions = [SubscriptionData.of(topic, "*", version) for topic in topics]
    subscriptions += [SubscriptionData.of(topic, expression, version) for topic, expression in expressions.items()]
    return ConsumerData(group, message_model=model, subscriptions=subscriptions)
