"""Handlers as the role of a broker permits them (RocketMQ: SendMessageProcessor.rejectRequest, EndTransactionProcessor,
AdminBrokerProcessor).

Of a slave: `SlaveRefusals`. Of an elected master: `fenced`, and `once_confirmed` after it has taken over. Of any master
that first completes what an earlier run began: `NOT_WHILE_COMPLETING`. Requests of operators are served outside of all
these: `in_every_role`.

RocketMQ's clients get the codes that Apache's slaves answer. Reput's client gets NOT_MASTER and the address of the
master, as far as the slave knows it; nothing was stored or changed.

Unlike Apache's, a slave takes no offsets and no changes of topics or groups: the next synchronization with the master
would take them back, after they were acknowledged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from reput_broker.config.sections import HAConfig
from reput_broker.put.appender import not_master
from reput_broker.put.put_lock import Fence
from reput_broker.remoting.request import Handled, Handler, Put, Refusal, Request, Response, Result
from reput_protocol.codes import ResponseCode
from reput_protocol.commands.base import Content, Kind
from reput_protocol.commands.table import REQUESTS
from reput_protocol.errors import ErrorCode

_BUSY: Final = int(ResponseCode.SYSTEM_BUSY)

NOT_WHILE_COMPLETING: Final = frozenset(code for code, row in REQUESTS.items() if row.changes or row.completes_first)
"""What a master refuses while it completes what an earlier run began."""


class SlaveRefusals:
    """Handlers that refuse.

    Args:
        master: returns the address of the master for clients; None while it is not known.
        who_may_lead: returns what is said of the other members then.
        has_offsets: returns whether the offsets of the groups were taken over from it; without them, a group would
            begin again.
        is_confirmed: returns whether all that consumers could read here is on every member of the in-sync set; the
            queues may have more from an earlier tenure.
    """

    def __init__(
        self,
        config: HAConfig,
        master: Callable[[], str | None],
        who_may_lead: Callable[[], Mapping[str, str]],
        has_offsets: Callable[[], bool],
        is_confirmed: Callable[[], bool],
    ) -> None:
        self._config = config
        self._master = master
        self._who_may_lead = who_may_lead
        self._has_offsets = has_offsets
        self._is_confirmed = is_confirmed

    def handlers(self, served: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the handlers of a slave by request code: those of `served`, as far as they are not refused."""
        handlers = dict(served)
        for code, row in REQUESTS.items():
            if row.kind in (Kind.CHANGES, Kind.MASTER_ONLY):
                handlers[code] = partial(self._refuse, row.refusal)
            elif row.kind is Kind.READS:
                handlers[code] = partial(self._read, served[code])
            elif row.kind is Kind.OFFSETS:
                handlers[code] = partial(self._query_offset, served[code])
        return handlers

    def _query_offset(self, handler: Handler, request: Request) -> Result:
        if not self._has_offsets():
            raise self._refusal("does not know the offsets of groups yet", _BUSY)
        return handler(request)

    def _read(self, handler: Handler, request: Request) -> Result:
        if not self._config.slave_read_enabled:
            raise self._refusal("serves no messages (ha.slave_read_enabled is false)", _BUSY)
        if not self._is_confirmed():
            raise self._refusal("does not know yet which of its messages are confirmed", _BUSY)
        return handler(request)

    def _refuse(self, response_code: int, _request: Request) -> Response:
        raise self._refusal("takes no messages and no changes", response_code)

    def _refusal(self, what: str, response_code: int) -> Refusal:
        master = self._master()
        where = f"its master is {master}" if master else "it does not know its master now: try again shortly"
        return Refusal(
            ErrorCode.NOT_MASTER,
            f"this broker is a slave and {what}; {where}",
            response_code=response_code,
            ext=self._who_may_lead() if master is None else {"master": master},
        )


def in_every_role(handlers: Mapping[int, Handler]) -> Mapping[int, Handler]:
    """Return handlers that each role serves alike.

    Raises:
        ValueError: the row of a request asks for another treatment by a slave, a former or a new master, or for an
            answer that waits for slaves.
    """
    for code in handlers:
        row = REQUESTS[code]
        if row.kind is not Kind.ANY or row.newest_only or row.changes_tables or row.pops:
            raise ValueError(
                f"the row of request {code} has kind, newest_only, changes_tables or pops, which have no effect on "
                "the requests of operators; enter its handler in MasterParts or CommonParts"
            )
    return handlers


def refusal_while_completing(begun: str) -> Refusal:
    """Return the refusal of a master that completes `begun`."""
    return Refusal(
        ErrorCode.NOT_MASTER,
        f"this broker completes {begun} before it takes messages and changes; try again shortly",
        response_code=_BUSY,
    )


def once_confirmed(served: Mapping[int, Handler], is_confirmed: Callable[[], bool]) -> dict[int, Handler]:
    """Return the handlers of a new master by request code: consumers get nothing until all that they could read is on
    every member of the in-sync set, which the other members have to connect for.
    """
    has_been = False

    def read(handler: Handler, request: Request) -> Result:
        nonlocal has_been
        has_been = has_been or is_confirmed()
        if not has_been:
            raise Refusal(
                ErrorCode.NOT_MASTER,
                "this broker has just become the master and does not know yet which of its messages the other replicas "
                "in sync have; try again shortly",
                response_code=_BUSY,
            )
        return handler(request)

    reads = [code for code in served if REQUESTS[code].kind is Kind.READS or REQUESTS[code].pops]
    return {**served, **{code: partial(read, served[code]) for code in reads}}


def fenced(served: Mapping[int, Handler], fence: Fence) -> dict[int, Handler]:
    """Return the handlers of a master by request code: they refuse changes once `fence` is closed, and do not tell
    committed offsets and batches any more: another master may have later ones.

    A change that was accepted before is counted as under way, so that a hand-over can wait for it. One that is complete
    only after the end of the tenure is answered with TIMEOUT.
    """
    handlers = dict(served)
    for code, handler in served.items():
        row = REQUESTS[code]
        # The put lock asks the fence for those that only put messages.
        if row.newest_only or (row.changes and row.content is not Content.PUT):
            handlers[code] = partial(_unless_fenced, handler, fence, row.refusal)
    return handlers


def _unless_fenced(handler: Handler, fence: Fence, response_code: int, request: Request) -> Result:
    reason = fence.refusal()
    if reason is not None:
        raise not_master(fence, reason, response_code)
    result = handler(request)
    return _counted(result, fence) if isinstance(result, Awaitable) else result


async def _counted(work: Awaitable[Handled], fence: Fence) -> Handled:
    with fence.change():
        outcome = await work
    reason = fence.expiry()
    if reason is None or isinstance(outcome, Put):  # the put lock asks the fence
        return outcome
    text = f"changed here; the next master may not have the change: {reason}; ask that one"
    raise Refusal(ErrorCode.TIMEOUT, text)
