"""A look-up by key reports whether its result is complete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from reput_broker.observe.counters import RequestTraffic
from reput_broker.processors.query import QueryProcessor
from reput_broker.remoting.request import Request, Response
from reput_broker.store.base.errors import DiskFull
from reput_broker.store.index.query import QueryResult
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.query import QueryMessageHeader
from reput_protocol.wire.header import Header, HeaderType


class FakeStore:
    """A store whose index has no room for the keys that wait, or has."""

    is_dispatched = is_confirmed = True

    def __init__(self, *, is_full: bool, records: tuple[bytes, ...]) -> None:
        self.is_full = is_full
        self.records = records

    def dispatch_is_idle(self) -> bool:
        return self.is_dispatched

    def complete_index(self) -> None:
        if self.is_full:
            raise DiskFull(Path("index/20260101000000000"), 420_000_040)

    def query_message(self, *_: object) -> QueryResult:
        return QueryResult(self.records, 0, 0, is_complete=True)


class FakeClient:
    """Keeps the answer and what was spawned."""

    def __init__(self) -> None:
        self.response: Response | None = None
        self.spawned: list[tuple[Callable[..., Awaitable[Any]], tuple[Any, ...]]] = []

    def spawn(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self.spawned.append((work, arguments))

    def answer(self, request: Request, response: Response) -> None:
        self.response = response

    def flush(self) -> None:
        """Nothing is written."""


async def answer_of(store: FakeStore) -> Response:
    client = FakeClient()
    ext = QueryMessageHeader("T", "k", 32, 0, 1 << 60).to_ext(HeaderType.MSGPACK)
    header = Header(RequestCode.QUERY_MESSAGE, 1, ext=ext)
    request = Request(cast("Any", client), HeaderType.MSGPACK, header, memoryview(b""), 0.0, RequestTraffic())
    QueryProcessor(cast("Any", SimpleNamespace(store=store, group_access=None))).query(request)
    for work, arguments in client.spawned:
        await work(*arguments)
    assert client.response is not None
    return client.response


@pytest.mark.trio
@pytest.mark.parametrize("is_full", [False, True])
async def test_keys_that_found_no_room_make_an_answer_incomplete(is_full: bool) -> None:
    with trio.fail_after(5):
        response = await answer_of(FakeStore(is_full=is_full, records=(b"record",)))
        assert response.code == ResponseCode.SUCCESS
        assert response.ext.get("indexComplete") is (False if is_full else None)
        missing = await answer_of(FakeStore(is_full=is_full, records=()))
        assert missing.code == ResponseCode.QUERY_NOT_FOUND
        assert ("ask again later" in str(missing.remark)) is is_full


@pytest.mark.trio
@pytest.mark.parametrize("what", ["is_dispatched", "is_confirmed"])
async def test_what_is_not_dispatched_or_not_known_to_be_confirmed_makes_an_answer_incomplete(what: str) -> None:
    store = FakeStore(is_full=False, records=())
    setattr(store, what, False)
    assert "ask again later" in str((await answer_of(store)).remark)
