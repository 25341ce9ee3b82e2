"""PutMessage, the send of the bundled client: a block of records of one topic and queue, encoded by the client."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from reput_broker.core import Core
from reput_broker.put.appender import StoredBefore
from reput_broker.request import Handled, Handler, Put, Refusal, Request, Response, Result
from reput_broker.retry.put_once import PutOnce, Work
from reput_broker.store.block import Block
from reput_broker.store.results import PutResult
from reput_protocol.codes import AckLevel, RequestCode
from reput_protocol.commands.send import PutMessageHeader, PutMessageResult
from reput_protocol.errors import ErrorCode
from reput_protocol.record.put_block import BLOCK_BYTES_MAX


class PutProcessor:
    """Stores blocks."""

    def __init__(self, core: Core, once: PutOnce) -> None:
        self._core = core
        self._once = once
        self._topic_access = core.topic_access
        self._requesters = core.groups.requesters
        self._store_host = str(core.store.options.host)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.PUT_MESSAGE: self.put}

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
        await self._topic_access.create_on_send(header.topic)
        self._topic_access.created(header.topic, header.queue_id)
        result = self._put_block(request, header)
        return await result if isinstance(result, Awaitable) else result

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
        if not self._once.looks_at(header.dedup):
            return Put(request, len(body), block, answer, topic, header.ack)

        def put_request(work: Work) -> Put:
            return Put(request, len(body), work, answer, topic, header.ack)

        return self._once.append(request, header, partial(self._core.store.put_one, block), put_request)
