"""A slave takes over its master's tables (RocketMQ: SlaveSynchronize).

RocketMQ's slaves ask for everything once a minute. A Reput master says in each answer what version a table has, and
sends only what has changed, so its slaves ask every second, and for offsets four times as often. After a failover a
group receives again the messages whose offsets it committed since then.

The member of a group with an election has a request open at its master, which is answered when a table changes
(AWAIT_TABLE_CHANGES). It takes over what has changed, and says so: the master may hold its answer to the change until
then. While that works, tables are asked for rarely besides.

A table may name messages that the slave does not have yet, such as offsets of consumers at the end of the master's log.
It is kept until the slave has dispatched the log up to the end that the master had, so that the tables of a slave that
becomes the master never point beyond its log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from math import inf
from typing import Any, Final, NamedTuple

import structlog
import trio

from reput_broker.delay.state import read_answer
from reput_broker.groups.membership import GroupMembersFile
from reput_broker.ha.service import MasterLog
from reput_broker.remoting.client import RemoteUnreachable, RemotingClient
from reput_broker.remoting.request import ClientAnswer
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.config_file import ConfigFile, DataVersion, decode, encode
from reput_broker.tables.tables import Tables
from reput_broker.tenure.core import Master
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.replica import (
    ANNOUNCED_TABLES,
    AwaitTableChangesHeader,
    SyncTableHeader,
    SyncTableResult,
    TableChanges,
)
from reput_protocol.commands.topic import KVTable
from reput_protocol.errors import BrokerError, ErrorCode, ReputError, error_from_response, leaves
from reput_protocol.wire.header import HeaderType

log = structlog.get_logger(__name__)

_LONGEST_S: Final = 0.5
_LEAST_S: Final = 0.05
"""Bounds of the time between two looks at what is due."""
_HURRY_S: Final = 0.005
"""Interval at which held tables are looked at, for which the log may arrive at any time."""
_TOLD_S: Final = 10.0
"""Interval at which a master is asked for a table that says when one changes."""
_BETWEEN_S: Final = 0.05
"""Pause between two questions for changes: what happens meanwhile is taken over together."""
_WAIT_MS: Final = 2000
_CHANGES_S: Final = 1.0
"""Interval at which a Reput master is asked for changes."""
_OFFSETS_S: Final = 0.25
"""Interval at which it is asked for offsets: groups receive again what they committed since, after a failover."""
_TIMER_S: Final = 10.0
"""Interval at which it is asked how far its timer is: after a failover the new master reads the log of that time again.
"""
_RETRY_S: Final = 1.0
_LOOK_S: Final = 0.05
"""Interval at which it is looked for a master that may be followed."""
_WHOLE_TABLE_S: Final = 60.0
"""Interval at which a table is requested from a RocketMQ broker, which always sends all of it."""
_FIGURES_S: Final = 10.0
"""Interval at which the bounds of the master's log are requested."""
_TIMEOUT_S: Final = 3.0

Members = dict[str, Any]


@dataclass(slots=True)
class _Held:
    """A table that waits for the log that it belongs to."""

    body: bytes
    version: str | None
    is_partial: bool
    """Whether the body has only what changed."""
    log_end: int | None
    """None until the end of a RocketMQ broker's log is known."""


@dataclass(slots=True, eq=False)
class _Table:
    name: str
    code: RequestCode
    take: Callable[[Members, _Held], Awaitable[None]]
    """Takes over the members of the body."""
    read: Callable[[bytes], Members] = decode
    """Returns the members of a body."""
    is_unchanged: Callable[[], bool] = lambda: True
    """Whether the table is still as it was taken over."""
    unchanged: Callable[[], None] = lambda: None
    """Called when the master says that what was taken over is still true."""
    interval_s: float = _CHANGES_S
    """Between two requests to a Reput master."""
    version: str | None = None
    due_at: float = -inf
    held: _Held | None = None
    refusal: str = ""

    @property
    def is_taken(self) -> bool:
        """Whether the table is here as it was when it was asked for last; a master may not have it."""
        return self.held is None and self.due_at > -inf and (self.version is not None or bool(self.refusal))


class _State(NamedTuple):
    """A state of the master's tables, as it tells it; see `TableChanges`."""

    changes: str = ""
    tables: str = ""


_NONE: Final = _State()


_FILES: Final = (
    ("delayOffset", RequestCode.GET_ALL_DELAY_OFFSET, "delayOffset.json"),
    ("requestModes", RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, "messageRequestMode.json"),
    ("schedules", RequestCode.GET_ALL_SCHEDULES, "schedules.json"),
    ("sinkBatches", RequestCode.GET_SINK_BATCHES, "sinkBatches.json"),
)
"""Tables that only a master reads, and their files."""


class SlaveSynchronize:
    """Keeps the tables of a slave like its master's, while it may follow that master.

    Args:
        master_log: receives the end of the master's log.
        accepted: returns the master whose history is that of this log; None while there is none.
        forget_topic: called with each topic that the master has deleted, after its queues were deleted.
        connect: makes a client of an address.
        member: this broker's number, if an election decides the master; None: no master is asked for changes.
        on_confirmed: called with an epoch, and the log offset before which its master says that all is confirmed.
    """

    def __init__(
        self,
        store: MessageStore,
        tables: Tables,
        master_log: MasterLog,
        accepted: Callable[[], Master | None],
        forget_topic: Callable[[str], None],
        connect: Callable[[str], RemotingClient] = RemotingClient,
        *,
        member: int | None = None,
        on_confirmed: Callable[[int, int], None] = lambda _epoch, _offset: None,
    ) -> None:
        self.master_min_offset = 0
        """The first log offset that the master still has; 0 while that is unknown."""
        self._synchronized_at: float | None = None
        self._store = store
        self._tables = tables
        self._master_log = master_log
        self._accepted = accepted
        self._forget_topic = forget_topic
        self._connect = connect
        self._member = member
        self._on_confirmed = on_confirmed
        self._told = self._taking = self._taken = _NONE
        self._began_at = trio.current_time()
        self._figures_due_at = -inf
        self._logged = ""
        self._wanted: trio.Event | None = None
        self._wake = trio.Event()
        self._topics_version = self._groups_version = DataVersion()
        self._deleted_topics: dict[str, int] = {}
        """Topics whose queues must still be deleted, with the end of the master's log when it had deleted them."""
        self.has_offsets = tables.offsets.file.path.exists()
        """Whether the offsets of the groups were ever taken over."""
        config = store.options.data_dir / "config"
        members = GroupMembersFile(config, tables.clock_ms)
        self._all = (
            # A slave refuses the first, so that no slave copies another's tables.
            _Table("offsets", RequestCode.GET_ALL_CONSUMER_OFFSET, self._take_offsets, interval_s=_OFFSETS_S),
            _Table(
                "topics",
                RequestCode.GET_ALL_TOPIC_CONFIG,
                self._take_topics,
                is_unchanged=lambda: tables.topics.version == self._topics_version,
            ),
            _Table(
                "groups",
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                self._take_groups,
                is_unchanged=lambda: tables.groups.version == self._groups_version,
            ),
            _Table(
                "timer",
                RequestCode.GET_TIMER_CHECK_POINT,
                partial(_write, ConfigFile(config / "masterTimer.json")),
                read=read_answer,
                interval_s=_TIMER_S,
            ),
            *(_Table(name, code, partial(_write, ConfigFile(config / file))) for name, code, file in _FILES),
            _Table(
                "groupMembers", RequestCode.GET_GROUP_MEMBERS, partial(_write, members), unchanged=members.unchanged
            ),
        )

        self._announced = [table for code in ANNOUNCED_TABLES for table in self._all if table.code is code]

    @property
    def age_s(self) -> float:
        """Time since the tables were last compared with the master's, or since the start."""
        at = self._synchronized_at
        return trio.current_time() - (self._began_at if at is None else at)

    async def run(self) -> None:
        """Synchronize until cancelled."""
        while True:
            master = self._accepted()
            if master is not None and not await self._follow(master):
                await self._pause(_RETRY_S)
            await self._pause(_LOOK_S)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not if `complete` has been called."""
        with trio.move_on_after(seconds):
            await self._wake.wait()
            self._wake = trio.Event()

    async def complete(self) -> None:
        """Take over all tables as they are now at the master, which changes nothing any more; return at once without
        one.
        """
        if self._accepted() is None:
            return
        completed = self._wanted = trio.Event()
        self._wake.set()
        await completed.wait()

    async def _follow(self, master: Master) -> bool:
        """Synchronize until another master is accepted; False after a failure."""
        client = self._connect(master.address)
        self._figures_due_at = -inf
        self._told = self._taking = self._taken = _NONE
        for table in self._all:
            table.version, table.held, table.due_at = None, None, -inf
        reason = ""
        try:
            async with trio.open_nursery() as nursery:
                if self._member is not None:
                    nursery.start_soon(self._be_told, client)
                await self._synchronize(client, master)
                nursery.cancel_scope.cancel()
        except* (RemoteUnreachable, BrokerError) as group:
            reason = "; ".join(str(error) for error in leaves(group))
        finally:
            client.close()
        if reason and reason != self._logged:
            self._logged = reason
            log.warning(
                "tables_not_synchronized",
                master=master.address,
                detail=reason,
                hint="the slave tries again; at a failover it has the tables of the last success",
            )
        return not reason

    async def _synchronize(self, client: RemotingClient, master: Master) -> None:
        is_wanted = False
        while self._accepted() == master:
            if self._wanted is not None and not is_wanted:
                is_wanted = True
                self._make_due(self._all)
            if self._told != self._taking == self._taken:
                self._make_due(self._changed_tables())
                self._taking = self._told
            await self._ask(client)
            for table in self._all:
                if self._accepted() == master:
                    await self._take_if_due(table)
            self._synchronized_at = trio.current_time()
            if self._logged:
                log.info("tables_synchronized", master=master.address)
                self._logged = ""
            if self._taking != self._taken and all(table.is_taken for table in self._announced):
                self._taken = self._taking
                await self._changes(client, wait_ms=0)
                continue
            if is_wanted and not any(t.held is not None or t.due_at == -inf for t in self._all):
                assert self._wanted is not None, "only this resets it"
                self._wanted.set()
                self._wanted, is_wanted = None, False
            await self._pause(_HURRY_S if is_wanted else self._quiet_s())

    def _quiet_s(self) -> float:
        """Return how long there is nothing to do, unless `_wake` is set."""
        if any(table.held is not None for table in self._all):
            return _HURRY_S
        due_at = min(self._figures_due_at, *(table.due_at for table in self._all))
        return min(_LONGEST_S, max(_LEAST_S, due_at - trio.current_time()))

    def _make_due(self, tables: Iterable[_Table]) -> None:
        for table in tables:
            table.held, table.due_at = None, -inf

    def _changed_tables(self) -> list[_Table]:
        """Return the tables that differ at the master from what was taken over."""
        before, after = self._taken.tables.split("."), self._told.tables.split(".")
        # A master of a later version may announce more.
        triples = zip_longest(self._announced, before, after)
        return [table for table, old, new in triples if table is not None and old != new]

    async def _be_told(self, client: RemotingClient) -> None:
        """Have the master say at once what has changed, and how far its log is confirmed."""
        confirmed = -1
        while True:
            told = await self._changes(client, self._told, confirmed, wait_ms=_WAIT_MS)
            if told is None:
                return
            confirmed = told.confirm_offset
            self._on_confirmed(told.epoch, told.confirm_offset)
            self._master_log.note_end(told.log_end)
            state = _State(told.changes, told.tables)
            if state != self._told:
                self._told = state
                self._wake.set()
            await trio.sleep(_BETWEEN_S)

    async def _changes(
        self, client: RemotingClient, known: _State | None = None, confirmed: int = -1, *, wait_ms: int
    ) -> TableChanges | None:
        """Say what is taken over, and return what the master has; None if it is of an earlier version."""
        assert self._member is not None, "only a member of a group asks"
        known = known or _NONE
        header = AwaitTableChangesHeader(
            self._member, self._taken.changes, known.changes, known.tables, confirmed, wait_ms
        )
        ext = header.to_ext(HeaderType.JSON)
        answer = await client.call(RequestCode.AWAIT_TABLE_CHANGES, ext, timeout_s=_TIMEOUT_S)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise error_from_response(answer.code, answer.remark, answer.ext)
        return TableChanges.from_ext(answer.ext)

    async def _ask(self, client: RemotingClient) -> None:
        now = trio.current_time()
        for table in self._all:
            if table.held is None and now >= table.due_at:
                await self._fetch(client, table)
        if now >= self._figures_due_at or any(table.held and table.held.log_end is None for table in self._all):
            await self._look(client)
            self._figures_due_at = now + _FIGURES_S

    async def _fetch(self, client: RemotingClient, table: _Table) -> None:
        known = table.version if table.is_unchanged() else None
        ext = SyncTableHeader(known or "", 0).to_ext(HeaderType.JSON)
        answer = await client.call(table.code, ext, timeout_s=_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            self._refused(table, answer)
            return
        result = SyncTableResult.from_ext(answer.ext)
        body = answer.body
        if result.table_size is not None and len(body) < result.table_size:
            body = await self._whole_table(client, table, result, body)
            if not body:
                return  # it has changed meanwhile, and is requested again
        is_reput = result.table_version is not None
        if result.log_end is not None and table.code is not RequestCode.GET_ALL_CONSUMER_OFFSET:
            self._master_log.note_end(result.log_end)  # offsets belong to what consumers can read
        interval_s = table.interval_s if self._told == _NONE else max(table.interval_s, _TOLD_S)
        table.due_at = trio.current_time() + (interval_s if is_reput else _WHOLE_TABLE_S)
        table.refusal = ""
        if not body:
            table.unchanged()
        else:
            table.held = _Held(
                body, result.table_version, bool(result.is_partial), result.log_end if is_reput else None
            )

    async def _whole_table(self, client: RemotingClient, table: _Table, first: SyncTableResult, body: bytes) -> bytes:
        """Return a table of which `body` is the first part; empty if the master has another one by now."""
        parts, size, version = [body], len(body), first.table_version
        while size < (first.table_size or 0):
            ext = SyncTableHeader(part_offset=size, part_of=version).to_ext(HeaderType.JSON)
            answer = await client.call(table.code, ext, timeout_s=_TIMEOUT_S)
            result = SyncTableResult.from_ext(answer.ext)
            if answer.code != ResponseCode.SUCCESS or result.table_version != version or not answer.body:
                return b""
            parts.append(answer.body)
            size += len(answer.body)
        return b"".join(parts)

    def _refused(self, table: _Table, answer: ClientAnswer) -> None:
        """Continue without a table that this master lacks, such as RocketMQ's without a delayed message.

        Raises:
            BrokerError: the broker is not a master.
        """
        error = error_from_response(answer.code, answer.remark, answer.ext)
        if error.error is ErrorCode.NOT_MASTER:
            raise error
        table.due_at = trio.current_time() + _WHOLE_TABLE_S
        if str(error) != table.refusal:
            table.refusal = str(error)
            log.info("table_not_served", table=table.name, detail=table.refusal)

    async def _look(self, client: RemotingClient) -> None:
        answer = await client.call(RequestCode.GET_BROKER_RUNTIME_INFO, {}, timeout_s=_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise error_from_response(answer.code, answer.remark, answer.ext)
        figures = KVTable.from_json(answer.body).table
        try:
            self.master_min_offset = int(figures["commitLogMinOffset"])
            log_end = int(figures["commitLogMaxOffset"])
        except (KeyError, ValueError) as error:
            raise RemoteUnreachable(client.address, f"its runtime figures have no bounds of the log: {error}") from None
        self._master_log.note_end(log_end)
        for table in self._all:
            if table.held is not None and table.held.log_end is None:
                table.held.log_end = log_end

    async def _take_if_due(self, table: _Table) -> None:
        held = table.held
        if held is None or held.log_end is None or self._store.dispatched_offset < held.log_end:
            return
        table.held = None
        try:
            members = await trio.to_thread.run_sync(table.read, held.body)
            await table.take(members, held)
        except (ReputError, OSError, ValueError) as error:
            table.version, table.due_at = None, trio.current_time() + _FIGURES_S
            log.error(
                "table_not_taken_over",
                table=table.name,
                detail=str(error),
                hint="check the disk; the slave requests the table again",
            )
        else:
            table.version = held.version

    # -- taking over -----------------------------------------------------------------------------------------

    async def _take_offsets(self, members: Members, held: _Held) -> None:
        offsets = {}
        for place, queues in (members.get("offsetTable") or {}).items():
            topic, separator, group = place.partition("@")
            if separator and isinstance(queues, dict):
                offsets[group, topic] = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
        version = DataVersion.from_json(members.get("dataVersion"))
        self._tables.offsets.adopt(offsets, is_partial=held.is_partial, version=version)
        self._tables.offsets_soon.committed()
        self.has_offsets = True
        if self._member is not None:
            await self._tables.offsets_soon.sync()  # the master is told that they are here

    async def _take_topics(self, members: Members, held: _Held) -> None:
        topics, deleted = self._tables.topics, self._deleted_topics
        deleted.update(dict.fromkeys(topics.adopt(members), held.log_end or 0))
        self._topics_version = topics.version
        # Before the save, and again after a failure: a saved table does not name them any more.
        gone = [
            topic
            for topic, log_end in deleted.items()
            if topics.get(topic) is None and not self._has_records_from(topic, log_end)
        ]
        if gone:
            self._store.delete_topics(gone)
            for topic in gone:
                self._forget_topic(topic)
        deleted.clear()
        await self._tables.topic_saver.save()

    def _has_records_from(self, topic: str, physical_offset: int) -> bool:
        """Tell whether the topic was created again since: then its old queues are gone already."""
        store = self._store
        for name, queue_id in store.queues():
            if name == topic:
                last = store.queue_units(topic, queue_id, store.max_offset_in_queue(topic, queue_id) - 1, 1)
                if last and last[0].physical_offset >= physical_offset:
                    return True
        return False

    async def _take_groups(self, members: Members, _held: _Held) -> None:
        groups = self._tables.groups
        groups.adopt(members)
        self._groups_version = groups.version
        await self._tables.group_saver.save()


async def _write(file: ConfigFile | GroupMembersFile, members: Members, _held: _Held) -> None:
    """Replace the file of a table that only a master reads."""
    await trio.to_thread.run_sync(file.save, encode(members))
