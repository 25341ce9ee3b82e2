"""Headers of our own requests about messages that wait for their time: which there are, and taking them back."""

from __future__ import annotations

from typing import ClassVar

from reput_protocol.codes import RequestCode
from reput_protocol.command_header import I32, CommandHeader


class ListDelayedHeader(CommandHeader):
    """Header of LIST_DELAYED_MESSAGES: messages that are parked, of one topic, with one key, or all.

    `topic` is where they will be delivered, `key` their unique id or one of their keys. `cursor` is what the answer
    before said: it goes on there. The broker may answer with fewer than `max_num`.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.LIST_DELAYED_MESSAGES

    topic: str | None = None
    key: str | None = None
    max_num: I32 = 64
    cursor: str | None = None


class CancelDelayedHeader(CommandHeader):
    """Header of CANCEL_DELAYED_MESSAGE: the parked messages of `topic` with this unique id or key must not come.

    The answer's body says of each whether that was in time; none at all is NOT_FOUND.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.CANCEL_DELAYED_MESSAGE

    topic: str
    key: str
