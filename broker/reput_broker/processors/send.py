"""Sends: PutMessage of the bundled client, and 10, 310 and 320 of RocketMQ's (RocketMQ: SendMessageProcessor)."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

from reput_broker.delay.delayed_record import number_of
from reput_broker.put.appender import StoredBefore
from reput_broker.remoting.request import Handled, Processor, Put, Refusal, Request, Response, Result, handled, serves
from reput_broker.retry.claimed_origins import Claim
from reput_broker.retry.feature import RetryFeature
from reput_broker.retry.send_back_deduplication import SendBackKey
from reput_broker.send.deduplication import DeduplicatedPuts, SingleSend, Work, content_of
from reput_broker.send.send_records import (
    BatchParts,
    DeadLetter,
    SendParts,
    SendRedirects,
    admitted_properties,
    batch_parts,
    record_parts,
)
from reput_broker.store.base.results import Block, PutResult, PutStatus
from reput_broker.tenure.core import Core
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel, RequestCode
from reput_protocol.commands.delay import RecallHandle
from reput_protocol.commands.send import PutMessageHeader, PutMessageResult, SendMessageHeader, SendMessageResult
from reput_protocol.commands.topic import TopicConfig
from reput_protocol.errors import ErrorCode
from reput_protocol.kernel.records import record_starts
from reput_protocol.names import RETRY_PREFIX, dlq_topic, group_of_retry_topic
from reput_protocol.properties import (
    DELAY,
    PRIORITY,
    SEND_BACK_ID,
    SHARDING_KEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    find_property,
)
from reput_protocol.record.delays import expires, priority_of
from reput_protocol.record.message_id import Host, offset_message_id_of
from reput_protocol.record.put_block import BLOCK_BYTES_MAX, BlockLimits

_WITHOUT_PRIORITY: Final = (DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS, SHARDING_KEY)
_DEDUPLICATED: Final = frozenset({"normal", "delayed"})
_host_of = lru_cache(maxsize=1024)(Host.unpack)
"""Cached because the connections of a client send many messages."""


class SendProcessor(Processor):
    """Stores a message or a batch, which the broker encodes."""

    def __init__(
        self, core: Core, deduplicated: DeduplicatedPuts, redirects: SendRedirects, retry: RetryFeature
    ) -> None:
        self._core = core
        self._deduplicated = deduplicated
        self._redirects = redirects
        self._retry = retry
        options = core.store.options
        self._packed_host = options.host.packed()
        self._limits = None if options.record_crc else BlockLimits(options.message_bytes_max)

    @serves(RequestCode.SEND_MESSAGE)
    def send_message(self, request: Request) -> Result:
        """Store one message, or a batch if the header says so (10)."""
        return self._send(request, SendMessageHeader.from_ext(request.ext))

    @serves(RequestCode.SEND_MESSAGE_V2)
    def send_message_v2(self, request: Request) -> Result:
        """Store one message, or a batch if the header says so (310)."""
        return self._send(request, SendMessageHeader.from_ext_v2(request.ext))

    @serves(RequestCode.SEND_BATCH_MESSAGE)
    def send_batch(self, request: Request) -> Result:
        """Store a batch (320)."""
        header = SendMessageHeader.from_ext_v2(request.ext)
        header.batch = True
        return self._send(request, header)

    def _send(self, request: Request, header: SendMessageHeader) -> Result:
        if header.ack is AckLevel.REPLICATED:
            self._core.puts.progress.check_replicas()
        if header.batch:
            return self._find_and_send(request, header, None)
        found = admitted_properties(header)
        group = group_of_retry_topic(header.topic)
        if group is not None:
            return self._send_returned(request, header, group, found)
        return self._find_and_send(request, header, found)

    async def _send_returned(
        self, request: Request, header: SendMessageHeader, group: str, found: dict[str, str]
    ) -> Handled:
        """Store a message that a consumer sends to its retry topic itself."""
        claim = Claim(group, found, bytes(request.body), header.flag, header.sys_flag)
        if not await self._retry.claims.check(request, claim):
            self._core.groups.requesters.drop_foreign(request.client, found)
        return await handled(self._find_and_send(request, header, found))

    def _find_and_send(self, request: Request, header: SendMessageHeader, found: dict[str, str] | None) -> Result:
        dead = self._redirects.dead_letter_of(request, header)
        config = self._core.topic_access.writable(header.topic, max(0, header.queue_id))
        if config is None or (dead is not None and not dead.has_topic) or self._marks(header, found):
            return self._create_and_send(request, header, found, dead)
        return self._send_records(request, header, found, dead, config)

    def _marks(self, header: SendMessageHeader, found: dict[str, str] | None) -> bool:
        """Tell whether this is the first message of a topic that expires. Those of retry topics always may."""
        return (
            found is not None
            and expires(found)
            and not self._core.topic_access.expires(header.topic)
            and not header.topic.startswith(RETRY_PREFIX)
        )

    async def _create_and_send(
        self, request: Request, header: SendMessageHeader, found: dict[str, str] | None, dead: DeadLetter | None
    ) -> Handled:
        # RocketMQ's clients choose the number of queues of a topic they create; the bundled client does not.
        queues = None if request.is_native else header.default_topic_queue_nums
        if self._core.topic_access.known(header.topic) is None:
            await self._core.topic_access.create_on_send(header.topic, queues, is_wanted=header.create_topic)
        if dead is not None:
            await self._core.topic_access.create_internal(dlq_topic(dead.group))
        config = self._core.topic_access.created(header.topic, max(0, header.queue_id))
        if self._marks(header, found):
            await self._core.topic_access.mark_expiring(config)
            config = self._core.topic_access.created(header.topic, max(0, header.queue_id))
        return await handled(self._send_records(request, header, found, dead, config))

    def _send_records(
        self,
        request: Request,
        header: SendMessageHeader,
        found: dict[str, str] | None,
        dead: DeadLetter | None,
        config: TopicConfig,
    ) -> Result:
        """Store a message with the properties `found`, or a batch."""
        if header.queue_id < 0:
            header.queue_id = random.randrange(max(1, config.write_queue_nums))
        group = group_of_retry_topic(header.topic)
        if group is None and found is not None and PRIORITY in found:
            _place_by_priority(header, found, config)
        born_host = _host_of(request.client.born_host)
        send_back_id = None if found is None else found.get(SEND_BACK_ID)
        parts: SendParts
        if found is None:
            parts = batch_parts(header, request.body, born_host, self._limits)
        else:
            redirect = partial(self._redirects.redirect, dead=dead)
            parts = record_parts(header, found, request.body, born_host, self._core.config.cluster, redirect)
        is_returned = group is not None and not header.batch and bool(header.reconsume_times)
        # A message that was delivered again has WAIT=false from the broker, and not from who returns it now.
        waits = parts.waits or is_returned
        ack = header.ack or (self._core.puts.default_ack() if waits else AckLevel.PAGE_CACHE)
        if parts.must_wait and ack is AckLevel.PAGE_CACHE:
            ack = self._core.puts.default_ack()
        block = parts.block(self._core.store)
        data = b"" if isinstance(block, PutResult) else block.data
        if group is None:  # a consumer returns the requests of others
            self._core.groups.requesters.sent(request.client, data)

        def answer(result: PutResult) -> Response:
            receipt = SendMessageResult(
                self._message_ids(data, result),
                result.queue_id if isinstance(result, StoredBefore) else header.queue_id,
                result.queue_offset,
                transaction_id=parts.unique_key,
                recall_handle=self._recall_handle(header, parts),
            )
            if request.is_native:
                receipt.store_timestamp = result.store_timestamp_ms
                receipt.ack = ack
            return Response(0, receipt.to_ext(request.header_type))

        def put_request(work: Block | Work) -> Put:
            level = ack if group is None else self._core.puts.ack_of_returned(ack)
            return Put(request, len(data), work, answer, parts.topic, level, parts.kind)

        if isinstance(block, Block) and parts.on_stored is None:
            work: Block | Work = block
        else:
            work = partial(self._put_and_tell, block, parts.on_stored)
        if header.dedup is None and not is_returned:
            return put_request(work)
        alone = partial(self._core.store.put_one, work) if isinstance(work, Block) else work
        if header.dedup is None:
            assert group is not None
            # The consumer has tried request 36 before, and received no answer or a refusal.
            key = SendBackKey.of_text(group, send_back_id)
            return self._retry.deduplicated.append(
                key, group, parts.records[0], alone, put_request, look=key is not None
            )
        return self._deduplicated.append_single(_single_send(header, parts), header.dedup, alone, put_request)

    def _recall_handle(self, header: SendMessageHeader, parts: SendParts) -> str | None:
        """Return by what the producer can recall a message; None if it does not wait in the timer."""
        if parts.kind != "delayed" or parts.unique_key is None or header.topic.startswith(RETRY_PREFIX):
            return None
        out_ms = number_of(find_property(parts.records[0].properties, b"TIMER_OUT_MS"))
        if out_ms is None:
            return None
        return str(RecallHandle(header.topic, self._core.config.broker_name, out_ms + 1, parts.unique_key))

    def _put_and_tell(self, block: Block | PutResult, on_stored: Callable[[], None] | None) -> PutResult:
        """Store a block and call `on_stored` as soon as it is in the log."""
        if isinstance(block, PutResult):
            return block
        result = self._core.store.put_one(block)
        if on_stored is not None and result.status is PutStatus.PUT_OK:
            on_stored()
        return result

    def _message_ids(self, data: Buffer, result: PutResult) -> str:
        first = result.physical_offset
        if result.count == 1:
            return offset_message_id_of(self._packed_host, first)
        starts = record_starts(data, 0, len(data))
        return ",".join([offset_message_id_of(self._packed_host, first + start) for start in starts])


def _place_by_priority(header: SendMessageHeader, found: dict[str, str], config: TopicConfig) -> None:
    """Choose the queue by a message's priority, whatever its client has chosen (RocketMQ: SendMessageProcessor).

    Delayed, ordered and half messages have none; theirs is removed. A value that is not valid has no effect.
    """
    priority = priority_of(found[PRIORITY])
    if priority is None:
        return
    if found.get(TRAN_MSG) == "true" or not found.keys().isdisjoint(_WITHOUT_PRIORITY):
        del found[PRIORITY]
    else:
        header.queue_id = min(priority, max(1, config.write_queue_nums) - 1)


def _single_send(header: SendMessageHeader, parts: SendParts) -> SingleSend:
    """Return the identity of a message that is not to be stored twice.

    Raises:
        Refusal: the broker cannot recognise it.
    """
    if isinstance(parts, BatchParts) or parts.kind not in _DEDUPLICATED or parts.topic != header.topic:
        raise Refusal(
            ErrorCode.INVALID_ARGUMENT,
            "batches, half messages and dead letters are not deduplicated; send it without dedup",
        )
    unique_id = find_property(header.properties.encode(), UNIQ_KEY.encode())
    if unique_id is None:
        raise Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"deduplication identifies messages by their unique id, and this one has none; add the property {UNIQ_KEY}",
        )
    (record,) = parts.records
    content = content_of(record.body, record.properties)
    return SingleSend(header.topic, header.queue_id, unique_id.decode(errors="replace"), content, header.dedup_within)


class PutProcessor(Processor):
    """Stores PutMessages: blocks of records of one topic and queue, encoded by the client."""

    def __init__(self, core: Core, deduplicated: DeduplicatedPuts) -> None:
        self._core = core
        self._deduplicated = deduplicated
        self._topic_access = core.topic_access
        self._requesters = core.groups.requesters
        self._store_host = str(core.store.options.host)

    @serves(RequestCode.PUT_MESSAGE)
    def put(self, request: Request) -> Result:
        """Store a block of records of one topic and queue as a whole."""
        header = PutMessageHeader.from_ext(request.header.ext)
        if header.ack is AckLevel.REPLICATED:
            self._core.puts.progress.check_replicas()
        size = len(request.body)
        if size > BLOCK_BYTES_MAX:
            self._core.counters.rejected["too_large"] += 1
            raise Refusal(
                ErrorCode.TOO_LARGE,
                f"a block of {size} bytes, but at most {BLOCK_BYTES_MAX} are accepted; send several smaller ones",
            )
        self._requesters.sent(request.client, request.body)
        if self._topic_access.writable(header.topic, header.queue_id) is None:
            return self._create_and_put(request, header)
        return self._put_block(request, header)

    async def _create_and_put(self, request: Request, header: PutMessageHeader) -> Handled:
        await self._topic_access.create_on_send(header.topic, is_wanted=header.create_topic)
        self._topic_access.created(header.topic, header.queue_id)
        return await handled(self._put_block(request, header))

    def _put_block(self, request: Request, header: PutMessageHeader) -> Result:
        def answer(result: PutResult) -> Response:
            receipt = PutMessageResult(
                result.queue_id if isinstance(result, StoredBefore) else header.queue_id,
                result.queue_offset,
                result.physical_offset,
                result.store_timestamp_ms,
                self._store_host,
                header.ack,
            )
            return Response(0, receipt.to_ext(request.header_type))

        body, topic = request.body, header.topic
        block = Block(body, topic, header.queue_id, header.count, request.client.born_host)
        if not self._deduplicated.looks_at(header.dedup):
            return Put(request, len(body), block, answer, topic, header.ack)

        def put_request(work: Work) -> Put:
            return Put(request, len(body), work, answer, topic, header.ack)

        return self._deduplicated.append(request, header, partial(self._core.store.put_one, block), put_request)
