"""Headers of our own requests of sinks: stage records, then publish them all at once, or drop them."""

from __future__ import annotations

from typing import ClassVar

from reput_protocol.codes import RequestCode
from reput_protocol.command_header import I32, I64, CommandHeader


class StageRecordsHeader(CommandHeader):
    """Header of STAGE_RECORDS: the next staged blocks (staged_blocks.py) of one staging are in the body.

    `staging_id` is made anew for every attempt; `position` is how many bytes of blocks were sent before.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.STAGE_RECORDS

    query_id: str
    batch_id: I64
    partition_id: I32
    staging_id: str
    position: I64


class EndStagingHeader(CommandHeader):
    """Header of END_STAGING: all of a staging was sent; it is answered once that is on the disk."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.END_STAGING

    query_id: str
    batch_id: I64
    staging_id: str
    position: I64
    messages: I64
    checksum: I64


class StageRecordsResult(CommandHeader):
    """Answer to STAGE_RECORDS and END_STAGING: how many bytes of blocks the staging has now."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.STAGE_RECORDS

    position: I64
    kept: bool = True
    """False: the batch is committed already, so nothing is kept of what is staged for it."""


class CommitStagedHeader(CommandHeader):
    """Header of COMMIT_STAGED: publish the stagings that the body (bodies_stage.py) lists, as one batch of a query."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.COMMIT_STAGED

    query_id: str
    batch_id: I64


class CommitStagedResult(CommandHeader):
    """Answer to COMMIT_STAGED: all is published and on the disk."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.COMMIT_STAGED

    last_batch_id: I64
    messages: I64
    repeated: bool
    """True: this batch, or a later one of the query, was committed before; nothing was published now."""


class AbortStagedHeader(CommandHeader):
    """Header of ABORT_STAGED: drop what is staged for one batch of a query."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.ABORT_STAGED

    query_id: str
    batch_id: I64


class QueryStagedHeader(CommandHeader):
    """Header of QUERY_STAGED: what is known of one query, or how much is staged in all."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_STAGED

    query_id: str | None = None


class QueryStagedResult(CommandHeader):
    """Answer to ABORT_STAGED and QUERY_STAGED: the stagings that there are, of the query if one was named."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_STAGED

    stagings: I32
    staged_bytes: I64
    last_batch_id: I64 = -1
    """The last batch of the query that was committed; -1 if none was, or nobody knows any more."""
