"""Which members have the changes of a master's tables. The clock is trio's mock clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast
from weakref import WeakSet

import pytest
import trio
import trio.testing
from typing_extensions import override

from reput_broker.config.sections import HAConfig
from reput_broker.ha.election.in_sync_set import InSyncSet, TableCopies
from reput_broker.observe.counters import Counters
from reput_broker.put.put_lock import Fence
from reput_broker.remoting.request import Request, Response
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.replica import AwaitTableChangesHeader, TableChanges
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType
from support.log_progress import FakeLog, progress_of
from support.member_fakes import FakeClient

COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


class Client(FakeClient):
    """Remembers whether it was answered."""

    is_answered = False
    code = 0

    def __init__(self, nursery: trio.Nursery | None = None) -> None:
        super().__init__()
        self._nursery = nursery

    @override
    def answer(self, request: Request, response: Response) -> None:
        self.is_answered = True
        self.code = response.code

    @override
    def spawn(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(work, *arguments)


class Ext(dict[str, Any]):
    """The fields of an answer, whose memory can be seen to be freed."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Master:
    """A master, member 1, with member 2 in its in-sync set."""

    def __init__(self) -> None:
        in_sync = InSyncSet(1, {1, 2}, start=0, timeout_s=10.0, gap_max=1000, now=trio.current_time())
        progress = progress_of(FakeLog(), Counters())
        progress.confirm(0)
        self.copies = TableCopies(
            in_sync,
            progress,
            HAConfig(in_sync_replicas=2),
            Fence(trio.current_time),
            str,
            lambda _request, _answer: None,
            epoch=1,
        )
        self.kept: WeakSet[Ext] = WeakSet()
        self._handle = self.copies.handlers({COMMIT: self._committed})[COMMIT]

    def _committed(self, _: Request) -> Response:
        ext = Ext()
        self.kept.add(ext)
        return Response(0, ext)

    def request(
        self, code: int, ext: Mapping[str, Any], flag: int = 0, nursery: trio.Nursery | None = None
    ) -> tuple[Request, Client]:
        client = Client(nursery)
        header = Header(code, 1, flag, None, dict(ext))
        return Request(client, HeaderType.JSON, header, memoryview(b""), 0.0, cast("Any", None)), client

    def commit(self, *, oneway: bool = False) -> Client:
        request, client = self.request(COMMIT, {}, ONEWAY_FLAG if oneway else 0)
        outcome = self._handle(request)
        if isinstance(outcome, Response):
            client.answer(request, outcome)
        return client

    def waits(self, nursery: trio.Nursery) -> Client:
        """Have member 2 wait for news."""
        known = AwaitTableChangesHeader(2, known=self.heard(), confirm_offset=0, wait_ms=2000)
        request, client = self.request(RequestCode.AWAIT_TABLE_CHANGES, known.to_ext(HeaderType.JSON), 0, nursery)
        if self.copies.wait(request) is not None:
            client.is_answered = True
        return client

    def heard(self, taken: str = "") -> str:
        """Have member 2 say what it has; return what the master has."""
        ext = AwaitTableChangesHeader(2, taken).to_ext(HeaderType.JSON)
        answer = self.copies.wait(self.request(RequestCode.AWAIT_TABLE_CHANGES, ext)[0])
        assert answer is not None
        return TableChanges.from_ext(answer.ext).changes


@pytest.mark.trio
async def test_a_member_that_begins_anew_has_no_changes_until_it_says_so() -> None:
    """It may have lost the tables that it had: it reads its files when it starts."""
    master = Master()
    client = master.commit()
    assert not client.is_answered
    assert not master.copies.may_join(2)
    master.heard(master.heard())
    assert client.is_answered
    assert master.copies.may_join(2)
    known = master.heard()
    assert not master.copies.may_join(2)
    master.heard(known)
    assert master.copies.may_join(2)


@pytest.mark.trio
async def test_changes_that_nobody_waits_for_take_no_memory_each() -> None:
    """A member may take none for the timeout of the set."""
    master = Master()
    for _ in range(100):
        master.commit(oneway=True)
    assert len(master.kept) <= 1
    client = master.commit()
    known = master.heard()
    master.commit(oneway=True)
    master.heard(known)
    assert client.is_answered


@pytest.mark.trio
async def test_a_master_that_stops_answers_at_once_what_waits() -> None:
    """Its server waits for all answers, and hears no member any more."""
    master = Master()
    async with trio.open_nursery() as nursery:
        waiting = master.waits(nursery)
        await trio.testing.wait_all_tasks_blocked()
        assert not waiting.is_answered
        change = master.commit()
        await trio.testing.wait_all_tasks_blocked()
        assert waiting.is_answered, "of the change"
        waiting = master.waits(nursery)
        await trio.testing.wait_all_tasks_blocked()
        assert not waiting.is_answered
        assert not change.is_answered
        master.copies.stop()
        await trio.testing.wait_all_tasks_blocked()
        assert waiting.is_answered
        assert change.is_answered
        assert change.code == ResponseCode.SYSTEM_BUSY, "whether the next master has it is unknown"
        assert master.waits(nursery).is_answered
        assert master.commit().code == ResponseCode.SYSTEM_BUSY


@pytest.mark.trio
async def test_a_wait_for_changes_ends_with_its_connection(autojump_clock: trio.testing.MockClock) -> None:
    """Its request is counted for the connection, and not after that has ended."""
    master = Master()
    for closes in (True, False):
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            client = master.waits(nursery)
            await trio.sleep(0.1)
            if closes:
                client.close("peer")
        assert (trio.current_time() - began_at < 0.5) is closes
        assert client.is_answered
