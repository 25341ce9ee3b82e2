"""Retries and dead letters of a master: messages that consumers send back (36, RocketMQ:
AbstractSendMessageProcessor.consumerSendMsgBack), and replays of dead letters.
"""

from __future__ import annotations

import random

from reput_broker.delay.delay_redirects import DelayRedirects
from reput_broker.remoting.request import (
    Handled,
    Processor,
    Put,
    Refusal,
    Request,
    Response,
    Result,
    handled,
    serves,
)
from reput_broker.retry.claimed_origins import ClaimedOrigins
from reput_broker.retry.replay import ReplayProcessor
from reput_broker.retry.send_back_deduplication import (
    SEND_BACK_ID_MAX,
    DeduplicatedReturns,
    SendBackKey,
    is_id,
)
from reput_broker.send.deduplication import Work
from reput_broker.send.retry_records import Returned, can_be_returned, returned_message
from reput_broker.send.send_records import counted_topic, max_reconsume_times, note_dead_letter
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.tenure import Core
from reput_broker.transactions.queue_reader import delivered_record_at
from reput_protocol.codes import Perm, RequestCode, ResponseCode
from reput_protocol.commands.consumers import SendBackHeader
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.errors import ErrorCode
from reput_protocol.names import dlq_topic, retry_topic
from reput_protocol.record.record import Record, encode_record


class SendBackProcessor(Processor):
    """Stores messages for their next attempt, or as dead letters."""

    def __init__(
        self, core: Core, delay_redirects: DelayRedirects, deduplicated: DeduplicatedReturns
    ) -> None:
        self._core = core
        self._topic_access = core.topic_access
        self._delay_redirects = delay_redirects
        self._deduplicated = deduplicated

    @serves(RequestCode.CONSUMER_SEND_MSG_BACK)
    def send_back(self, request: Request) -> Result:
        """Store the message for a later attempt, or as a dead letter. Its consumer need not consume it again."""
        header = SendBackHeader.from_ext(request.ext)
        if not is_id(header.send_back_id or ""):
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"sendBackId {header.send_back_id!r} is not valid; "
                f"use up to {SEND_BACK_ID_MAX} ASCII letters and digits",
            )
        config = self._core.group_access.find_or_create(header.group)
        if config.retry_queue_nums <= 0:
            return Response()
        if self._topic_access.known(retry_topic(header.group)) is None:
            return self._with_retry_topic(request, header, config)
        return self._send_back(request, header, config)

    async def _with_retry_topic(
        self, request: Request, header: SendBackHeader, config: SubscriptionGroupConfig
    ) -> Handled:
        await self._topic_access.create_internal(retry_topic(header.group), config.retry_queue_nums)
        return await handled(self._send_back(request, header, config))

    def _send_back(self, request: Request, header: SendBackHeader, config: SubscriptionGroupConfig) -> Result:
        topic = self._topic_access.known(retry_topic(header.group))
        if topic is not None and not topic.perm & Perm.WRITE:
            raise Refusal(
                ErrorCode.NO_PERMISSION, f"topic {topic.topic_name!r} is not writable; alter its permission"
            )
        record = delivered_record_at(self._core.store, header.offset)
        if record is None or not can_be_returned(record.topic):
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"no message of a consumer is at log offset {header.offset}; it may have expired",
                response_code=int(ResponseCode.SYSTEM_ERROR),
            )
        request.check_topic_of_message("read", record.topic)
        key = SendBackKey(header.group, header.offset, header.send_back_id or "")
        returned = returned_message(
            record,
            header.group,
            retry_queue_id=random.randrange(config.retry_queue_nums),
            delay_level=header.delay_level,
            max_reconsume_times=max_reconsume_times(
                request, header.max_reconsume_times, config.retry_max_times
            ),
            send_back_id=key.text,
            reason=header.reason,
        )
        look = bool(header.is_repeated)
        if not returned.is_dead_letter:
            delayed = self._delay_redirects.redirect(returned.record, returned.properties)
            assert delayed is not None, "it has a delay level"
            return self._store_it(request, key, returned, delayed, look)
        if self._topic_access.known(dlq_topic(header.group)) is None:
            return self._with_dead_letter_topic(request, key, returned, look)
        return self._store_it(request, key, returned, returned.record, look)

    async def _with_dead_letter_topic(
        self, request: Request, key: SendBackKey, returned: Returned, look: bool
    ) -> Handled:
        await self._topic_access.create_internal(dlq_topic(key.group))
        return await handled(self._store_it(request, key, returned, returned.record, look))

    def _store_it(
        self, request: Request, key: SendBackKey, returned: Returned, record: Record, look: bool
    ) -> Result:
        def put() -> PutResult:
            result = self._core.store.put_record(record)
            if result.status is PutStatus.PUT_OK:
                self._count(key.group, returned)
            return result

        size = len(encode_record(record)) + 20
        puts = self._core.puts

        def make_put(work: Work) -> Put:  # after a look that may have waited
            ack = puts.ack_of_returned(puts.default_ack())
            return Put(request, size, work, lambda _: Response(), returned.record.topic, ack)

        return self._deduplicated.append(key, key.group, record, put, make_put, look=look)

    def _count(self, group: str, returned: Returned) -> None:
        counts = self._core.counters.retry
        counts.nacks[group] += 1
        if returned.is_dead_letter:
            note_dead_letter(self._core, group, returned.origin_topic, returned.record)
        else:
            counts.retries[group, counted_topic(self._topic_access, returned.origin_topic)] += 1


class RetryFeature:
    """Retries and dead letters.

    Attributes:
        deduplicated: stores messages that consumers send back, once each.
        claims: checks what they say about messages that they send to a retry topic themselves.
    """

    def __init__(self, core: Core, delay_redirects: DelayRedirects) -> None:
        self.deduplicated = DeduplicatedReturns(core)
        self.claims = ClaimedOrigins(core)
        self.processors = (
            SendBackProcessor(core, delay_redirects, self.deduplicated),
            ReplayProcessor(core),
        )
