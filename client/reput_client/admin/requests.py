"""Requests of administrators to the masters of all brokers of a cluster, and how their answers are combined."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from reput_client.consume.offsets import QueueBounds
from reput_client.errors import BrokerNotFound, BrokersFailed
from reput_client.received import ReceivedMessage
from reput_client.transport.address import Address
from reput_client.transport.session import raise_refusal
from reput_client.transport.standbys import read
from reput_protocol.codes import RequestCode
from reput_protocol.commands.query import ViewMessageHeader
from reput_protocol.errors import BrokerError, ErrorCode, NotFound, RecordMalformed, ReputError
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.message_id import decode_offset_message_id
from reput_protocol.record.scan import ScanStatus, scan_record
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import Value

T = TypeVar("T")
C = TypeVar("C")
NO_FAILURES: Final[Mapping[str, ReputError]] = {}


class AdminRequests(QueueBounds):
    """The base of all parts of `Admin`: asks every broker, or one."""

    async def _ask(self, code: RequestCode, ext: Mapping[str, Value], what: str, body: bytes = b"") -> Call:
        """Ask the client's own address, a broker or a name server."""
        return await self._session.ask_ok(code, ext, what=what, body=body)

    async def _ask_one(
        self, broker_name: str | None, code: RequestCode, ext: Mapping[str, Value], what: str, body: bytes = b""
    ) -> Call:
        """Ask the named broker's master; without a name, the client's own address."""
        if broker_name is None:
            return await self._ask(code, ext, what, body)
        return (await self._ask_each(code, ext, f"{what} {broker_name}", body, brokers=[broker_name]))[broker_name]

    async def _from_masters(
        self,
        read_page: Callable[[str, int, C | None], Awaitable[tuple[Sequence[T], C | None]]],
        count_max: int,
        order: Callable[[T], int],
    ) -> list[T]:
        """Return what the masters of all brokers list, page by page, in one order; each has its own sorted.

        Args:
            read_page: given a broker's name, how many are wanted, and the cursor of the page before (None at first);
                returns some and the next cursor, None at the end.
        """
        found: list[T] = []
        masters = await self._masters()
        for name in masters:
            of_broker: list[T] = []
            cursor: C | None = None
            while len(of_broker) < count_max:
                page, cursor = await read_page(name, count_max - len(of_broker), cursor)
                of_broker += page
                if cursor is None:
                    break
            found += of_broker
        if len(masters) > 1:
            found.sort(key=order)
        return found[:count_max]

    async def _masters(self, names: Iterable[str] | None = None) -> dict[str, Address]:
        """Return the address of every master, or of the named brokers'; raises `BrokerNotFound`."""
        masters = await self._session.masters(self._session.deadline(None))
        if names is None:
            return masters
        for name in names:
            if name not in masters:
                raise BrokerNotFound(name, "")
        return {name: masters[name] for name in sorted(set(names))}

    async def _brokers(self) -> dict[str, MessageQueue]:
        """Return every broker, also without a master, as a place for `_ask_all`; raises `BrokerNotFound`."""
        names = await self._session.broker_names(self._session.deadline(None))
        return {name: MessageQueue("", name, 0) for name in names}

    async def _ask_each(
        self,
        code: RequestCode,
        ext: Mapping[str, Value],
        what: str,
        body: bytes = b"",
        *,
        brokers: Iterable[str] | None = None,
        absent: Collection[type[BrokerError]] = (),
        timeout_s: float | None = None,
    ) -> dict[str, Call]:
        """Ask every master, or those of `brokers`, and after a failover the new one; the rest as for `_ask_all`."""
        return await self._ask_all(
            {name: MessageQueue("", name, 0) for name in await self._masters(brokers)},
            code,
            ext,
            what,
            body,
            absent=absent,
            timeout_s=timeout_s,
        )

    async def _ask_all(
        self,
        places: Mapping[str, Address | MessageQueue],
        code: RequestCode,
        ext: Mapping[str, Value],
        what: str,
        body: bytes = b"",
        *,
        absent: Collection[type[BrokerError]] = (),
        accepted: Collection[int] = (),
        failed: Mapping[str, ReputError] = NO_FAILURES,
        timeout_s: float | None = None,
        or_slave: bool = False,
    ) -> dict[str, Call]:
        """Ask all brokers at `places`, one after the other; return the answers by broker.

        A place is an address, or a queue, which stands for the master of its broker; with `or_slave` also for a slave
        if the master cannot be reached.

        Brokers that refuse with one of the errors `absent`, because they do not have what is asked for, are left out,
        unless all do. Answers with a code in `accepted` are no refusals. Those of `failed` have failed before, and are
        reported with the others.

        Raises:
            BrokersFailed: some brokers failed. If there is only one broker, its own error.
            BrokerError: of `absent`: no broker has it.
        """
        answers: dict[str, Call] = {}
        failures = dict(failed)
        missing: ReputError | None = None
        for name, place in places.items():
            try:
                deadline = self._session.deadline(timeout_s)
                if or_slave and isinstance(place, MessageQueue):
                    call = await read(self._session, code, ext, what=what, queue=place, deadline=deadline)
                else:
                    call = await self._session.ask(
                        code,
                        ext,
                        what=what,
                        address=place if isinstance(place, Address) else None,
                        queue=place if isinstance(place, MessageQueue) else None,
                        body=body,
                        deadline=deadline,
                    )
                if call.answer.code not in accepted:
                    raise_refusal(call)
                answers[name] = call
            except ReputError as error:
                self._session.check_open()
                if isinstance(error, tuple(absent)):
                    missing = error
                else:
                    failures[name] = error
        if failures:
            if len(places) == 1 and not failed:
                raise next(iter(failures.values()))
            raise BrokersFailed(what, failures, sorted(answers))
        if not answers and missing is not None:
            raise missing
        return answers

    async def _find_message(self, offset_message_id: str) -> tuple[str, ReceivedMessage]:
        """Return the broker and the message of an offset message id; raises like `Admin.view_message`.

        A broker returns what it has at the id's place in its log, which at another broker is another message.
        """
        _, physical_offset = decode_offset_message_id(offset_message_id)
        brokers = await self._brokers()
        answers = await self._ask_all(
            brokers,
            RequestCode.VIEW_MESSAGE_BY_ID,
            ViewMessageHeader(physical_offset).to_ext(),
            f"message {offset_message_id}",
            absent=(NotFound, BrokerError),
            or_slave=True,
        )
        damage: RecordMalformed | None = None
        for name, call in answers.items():
            if not call.body:
                continue
            record = bytes(call.body)
            scan = scan_record(record, 0, len(record), check_crc=True)
            if scan.status is not ScanStatus.RECORD:
                damage = RecordMalformed(0, 0, scan.reason or "a blank record, the end of a file")
                continue
            message = ReceivedMessage.of_record(record, name)
            if len(brokers) == 1 or message.offset_message_id == offset_message_id.upper():
                return name, message
        raise damage or NotFound(ErrorCode.NOT_FOUND, f"no message {offset_message_id}")

    async def _read_each(
        self,
        read: Callable[[memoryview], T],
        code: RequestCode,
        ext: Mapping[str, Value],
        what: str,
        *,
        absent: Collection[type[BrokerError]] = (),
    ) -> dict[str, T]:
        """Ask every broker, a slave if its master cannot be reached; return the answers decoded by `read`.

        The rest as for `_ask_all`.
        """
        answers = await self._ask_all(await self._brokers(), code, ext, what, absent=absent, or_slave=True)
        return {name: read(call.body) for name, call in answers.items()}
