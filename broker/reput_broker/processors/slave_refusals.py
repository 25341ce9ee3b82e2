"""What a slave refuses (RocketMQ: SendMessageProcessor.rejectRequest, EndTransactionProcessor, AdminBrokerProcessor).

RocketMQ's clients get the codes that Apache's slaves answer. Reput's client gets NOT_MASTER and the address of the
master, as far as the slave knows it; nothing was stored or changed.

Unlike Apache's, a slave takes no offsets and no changes of topics or groups: the next synchronization with the master
would take them back, after they were acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from reput_broker.config.sections import HAConfig
from reput_broker.request import Handler, Refusal, Request, Response, Result
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import ErrorCode

_BUSY: Final = int(ResponseCode.SYSTEM_BUSY)
_NOT_AVAILABLE: Final = int(ResponseCode.SLAVE_NOT_AVAILABLE)
_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)

_REFUSED: Final = {
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
        RequestCode.LIST_DELAYED_MESSAGES,
        RequestCode.CANCEL_DELAYED_MESSAGE,
        RequestCode.STAGE_RECORDS,
        RequestCode.END_STAGING,
        RequestCode.COMMIT_STAGED,
        RequestCode.ABORT_STAGED,
        RequestCode.QUERY_STAGED,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_SINK_BATCHES,
    ),
    _NOT_AVAILABLE: (RequestCode.END_TRANSACTION, RequestCode.RECALL_MESSAGE),
    _ERROR: (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.GET_ALL_DELAY_OFFSET,
    ),
}
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
        for response_code, codes in _REFUSED.items():
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
