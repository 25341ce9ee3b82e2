"""The pull request and its answer, shared by `PullConsumer` and `Consumer`."""

from __future__ import annotations

from typing import Final

from reput_client.consume.pull_result import PulledMessages, PullResult, PullStatus
from reput_client.consume.pull_survey import Pulled
from reput_client.consume.wanted import Wanted
from reput_client.transport.core import Call
from reput_protocol.codes import PullSysFlag, ResponseCode
from reput_protocol.commands_pull import PullMessageHeader, PullMessageResult
from reput_protocol.errors import error_from_response
from reput_protocol.header import HeaderType, Value
from reput_protocol.message import MessageQueue

PULL_MESSAGES_MAX: Final = 1024
PULL_BYTES_MAX: Final = 4 * 1024 * 1024
PULL_GRACE_S: Final = 5.0
"""How much longer than its long poll a pull may take."""

_STATUS_OF_CODE: Final = {
    ResponseCode.SUCCESS.value: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND.value: PullStatus.NO_NEW_MESSAGE,
    ResponseCode.PULL_RETRY_IMMEDIATELY.value: PullStatus.NO_MATCHED_MESSAGE,
    ResponseCode.PULL_OFFSET_MOVED.value: PullStatus.OFFSET_ILLEGAL,
}


def pull_ext(
    group: str,
    topic: str,
    queue_id: int,
    queue_offset: int,
    wanted: Wanted,
    *,
    max_messages: int,
    max_bytes: int,
    wait_s: float,
    commit_offset: int | None = None,
) -> dict[str, Value]:
    """Return the header fields of a pull; with `wait_s` the broker holds it until something comes.

    `commit_offset` is committed on the way. The answer does not say whether that went well.
    """
    sys_flag = PullSysFlag.SUBSCRIPTION
    if commit_offset is not None:
        sys_flag |= PullSysFlag.COMMIT_OFFSET
    if wait_s > 0:
        sys_flag |= PullSysFlag.SUSPEND
    return PullMessageHeader(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=max_messages,
        sys_flag=sys_flag,
        commit_offset=commit_offset or 0,
        suspend_timeout_millis=round(wait_s * 1000),
        subscription=wanted.expression,
        expression_type=wanted.expression_type.value,
        max_msg_bytes=max_bytes,
    ).to_ext(HeaderType.MSGPACK)


def pull_result(queue: MessageQueue, offset: int, call: Call, wanted: Wanted) -> PullResult:
    """Return what an answered pull from `offset` of a queue brought. Damaged messages are among the messages.

    Raises:
        BrokerError: the broker refused the pull.
        RecordMalformed: what came is no records, and no message can have been meant.
    """
    header = call.answer
    status = _STATUS_OF_CODE.get(header.code)
    if status is None:
        raise error_from_response(header.code, header.remark, header.ext)
    result = PullMessageResult.from_ext(header.ext)
    pulled = Pulled(
        queue.topic, queue.queue_id, offset, result.next_begin_offset, filtered=not wanted.is_everything
    )
    messages = PulledMessages(queue.topic, call.body, wanted.tag_filter, queue.broker_name, pulled)
    if status is PullStatus.FOUND and not messages:
        # Every message only shared its tag's hash with a wanted one.
        status = PullStatus.NO_MATCHED_MESSAGE
    return PullResult(status, messages, result.next_begin_offset, result.min_offset, result.max_offset)
