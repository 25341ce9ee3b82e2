"""What a slave refuses, and a master that completes something first or whose fence is closed (RocketMQ:
SendMessageProcessor.rejectRequest, EndTransactionProcessor, AdminBrokerProcessor).

RocketMQ's clients get the codes that Apache's slaves answer. Reput's client gets NOT_MASTER and the address of the
master, as far as the slave knows it; nothing was stored or changed.

Unlike Apache's, a slave takes no offsets and no changes of topics or groups: the next synchronization with the master
would take them back, after they were acknowledged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import chain
from typing import Final

from reput_broker.config.sections import HAConfig
from reput_broker.put.appender import not_master
from reput_broker.put.fence import Fence
from reput_broker.request import Handler, Outcome, Put, Refusal, Request, Response, Result
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import ErrorCode

_BUSY: Final = int(ResponseCode.SYSTEM_BUSY)
_NOT_AVAILABLE: Final = int(ResponseCode.SLAVE_NOT_AVAILABLE)
_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)

_CHANGES: Final = {
    _BUSY: (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PUT_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.CANCEL_DELAYED_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.STAGE_RECORDS,
        RequestCode.END_STAGING,
        RequestCode.COMMIT_STAGED,
        RequestCode.ABORT_STAGED,
    ),
    _NOT_AVAILABLE: (RequestCode.END_TRANSACTION, RequestCode.RECALL_MESSAGE),
    _ERROR: (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
    ),
}
CHANGES_OF_TABLES: Final = frozenset(
    {
        RequestCode.UPDATE_CONSUMER_OFFSET,
        *(code for code in _CHANGES[_ERROR] if code is not RequestCode.RESUME_CHECK_HALF_MESSAGE),
    }
)
"""These change tables that slaves take over, not the log."""
_OF_A_MASTER: Final = {
    _BUSY: (
        RequestCode.LIST_DELAYED_MESSAGES,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.QUERY_STAGED,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_SINK_BATCHES,
        RequestCode.AWAIT_TABLE_CHANGES,
    ),
    _ERROR: (RequestCode.GET_ALL_DELAY_OFFSET,),
}
"""Questions that only a master can answer."""
NOT_WHILE_COMPLETING: Final = frozenset(
    {*chain.from_iterable(_CHANGES.values()), RequestCode.QUERY_STAGED, RequestCode.SET_INTAKE}
)
"""What a master refuses while it completes what an earlier run began."""
_NEWEST_ONLY: Final = (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.QUERY_STAGED)
"""Questions that a master does not answer any more once it may have been replaced."""
_APPENDED: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PUT_MESSAGE,
    }
)
"""These only put messages, and the put lock asks the fence."""
_READS: Final = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.FETCH_RECORDS,
    RequestCode.QUERY_QUEUE_BOUNDS,
)


class SlaveRefusals:
    """Handlers that refuse.

    Args:
        master: returns the address of the master for clients; None while it is not known.
        has_offsets: returns whether the offsets of the groups were taken over from it; without them, a group would
            begin again.
        is_confirmed: returns whether all that consumers could read here is on every member of the in-sync set; the
            queues may have more from an earlier tenure.
    """

    def __init__(
        self,
        config: HAConfig,
        master: Callable[[], str | None],
        has_offsets: Callable[[], bool],
        is_confirmed: Callable[[], bool],
    ) -> None:
        self._config = config
        self._master = master
        self._has_offsets = has_offsets
        self._is_confirmed = is_confirmed

    def handlers(self, served: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the handlers of a slave by request code: those of `served`, as far as they are not refused."""
        handlers = dict(served)
        for refused in (_CHANGES, _OF_A_MASTER):
            for response_code, codes in refused.items():
                for code in codes:
                    handlers[code] = partial(self._refuse, response_code)
        for code in _READS:
            handlers[code] = partial(self._read, served[code])
        query = RequestCode.QUERY_CONSUMER_OFFSET
        handlers[query] = partial(self._query_offset, served[query])
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
            ext={} if master is None else {"master": master},
        )


def is_completing(begun: str) -> Refusal:
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
                "this broker has just become the master and does not know yet which of its messages the other members "
                "in sync have; try again shortly",
                response_code=_BUSY,
            )
        return handler(request)

    pops = (RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE)
    return {**served, **{code: partial(read, served[code]) for code in (*_READS, *pops)}}


def fenced(served: Mapping[int, Handler], fence: Fence) -> dict[int, Handler]:
    """Return the handlers of a master by request code: they refuse changes once `fence` is closed, and do not tell
    committed offsets and batches any more: another master may have later ones.

    A change that was accepted before is counted as under way, so that a hand-over can wait for it. One that is complete
    only after the end of the tenure is answered with TIMEOUT.
    """
    handlers = dict(served)
    for response_code, codes in (*_CHANGES.items(), (_BUSY, _NEWEST_ONLY)):
        for code in set(codes) & served.keys() - _APPENDED:
            handlers[code] = partial(_unless_fenced, served[code], fence, response_code)
    return handlers


def _unless_fenced(handler: Handler, fence: Fence, response_code: int, request: Request) -> Result:
    reason = fence.refusal()
    if reason is not None:
        raise not_master(reason, response_code)
    result = handler(request)
    return _counted(result, fence) if isinstance(result, Awaitable) else result


async def _counted(work: Awaitable[Outcome], fence: Fence) -> Outcome:
    with fence.change():
        outcome = await work
    reason = fence.expiry()
    if reason is None or isinstance(outcome, Put):  # the put lock asks the fence
        return outcome
    text = f"changed here, and not known whether the next master has it: {reason}; ask that one"
    raise Refusal(ErrorCode.TIMEOUT, text)
