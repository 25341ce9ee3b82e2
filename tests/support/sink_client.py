"""Stage and commit by hand: what a sink sends, without the sink."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from reput_client.blocking.bulk import BulkReader
from reput_protocol.codes import RequestCode
from reput_protocol.commands.stage import CommitStagedBody, StagedPart, encode_staged_head
from reput_protocol.kernel.records import crc32
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.record.record import record_views
from reput_protocol.wire.header import Header, Value
from support.raw_client import RawClient


def block_of(topic: str, queue_id: int, bodies: Sequence[bytes], prefix: str) -> bytes:
    """Return a staged block: head, topic and records with unique ids."""
    ids = [f"{prefix}-{queue_id}-{index}" for index in range(len(bodies))]
    block = encode_put_block([Message("any", body) for body in bodies], topic, queue_id, 1_700_000_000_000, ids)
    return encode_staged_head(topic, queue_id, len(bodies), block) + block


@dataclass
class Staged:
    """One staging as its sender knows it."""

    query_id: str
    batch_id: int
    partition_id: int = 0
    staging_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    position: int = 0
    messages: int = 0
    checksum: int = 0

    def ext(self) -> dict[str, Value]:
        return {
            "queryId": self.query_id,
            "batchId": self.batch_id,
            "partitionId": self.partition_id,
            "stagingId": self.staging_id,
        }

    @property
    def part(self) -> StagedPart:
        return StagedPart(self.staging_id, self.messages, self.checksum)


class SinkClient(RawClient):
    """A connection that stages and commits."""

    def stage(self, staged: Staged, topic: str, queue_id: int, bodies: Sequence[bytes]) -> Header:
        """Send the next block of a staging; it counts as sent if it was taken."""
        prefix = f"{staged.staging_id}-{staged.position}"
        body = block_of(topic, queue_id, bodies, prefix)
        header = self.stage_raw(staged, body)
        if header.code == 0:
            head = len(topic.encode()) + 22
            staged.position += len(body)
            staged.messages += len(bodies)
            staged.checksum = crc32(body[:head], staged.checksum)
        return header

    def stage_raw(self, staged: Staged, body: bytes, position: int | None = None) -> Header:
        at = staged.position if position is None else position
        return self.request(RequestCode.STAGE_RECORDS, {**staged.ext(), "position": at}, body)[0]

    def end(self, staged: Staged) -> Header:
        ext = staged.ext() | {"position": staged.position, "messages": staged.messages, "checksum": staged.checksum}
        return self.request(RequestCode.END_STAGING, ext)[0]

    def commit(self, query_id: str, batch_id: int, staged: Sequence[Staged]) -> Header:
        body = CommitStagedBody([one.part for one in staged]).to_json()
        return self.request(RequestCode.COMMIT_STAGED, {"queryId": query_id, "batchId": batch_id}, body)[0]

    def abort(self, query_id: str, batch_id: int) -> Header:
        return self.request(RequestCode.ABORT_STAGED, {"queryId": query_id, "batchId": batch_id})[0]

    def known(self, query_id: str | None = None) -> Header:
        ext = {} if query_id is None else {"queryId": query_id}
        return self.request(RequestCode.QUERY_STAGED, ext)[0]


def published(address: str, topic: str) -> dict[int, list[bytes]]:
    """Return the bodies of a topic by queue, in order; all that is durable."""
    found: dict[int, list[bytes]] = {}
    with BulkReader(address, timeout_s=20) as reader:
        table = reader.queue_bounds([topic])
        for queue_id, low, high in table.topics.get(topic, []):
            bodies = found.setdefault(queue_id, [])
            while low < high:
                block = reader.fetch(topic, queue_id, low, high, broker_name=table.broker_name)
                bodies += [view.body for view in record_views(block.records)]
                low = block.next_offset
    return found
