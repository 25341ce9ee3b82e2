"""Finding messages by key, and by offset message id."""

from __future__ import annotations

from typing import ClassVar

from reput_protocol.codes import RequestCode
from reput_protocol.commands.header import I32, I64, CommandHeader


class QueryMessageHeader(CommandHeader):
    """Header of 12: the newest `max_num` messages of a topic with a key, stored between two times (ms).

    The key is a unique id or one of the keys; RocketMQ's clients say which, without effect here.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_MESSAGE

    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64


class QueryMessageResult(CommandHeader):
    """Answer to 12: store time and log offset of the last indexed message; the body is the records.

    `index_complete` is Reput's: false while the index is rebuilt after a crash.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_MESSAGE

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64
    index_complete: bool | None = None


class ViewMessageHeader(CommandHeader):
    """Header of 33: the one record at a physical offset."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.VIEW_MESSAGE_BY_ID

    offset: I64
    topic: str | None = None
