"""Headers of our own requests about groups as people look at them: all in short, one with its members and queues."""

from __future__ import annotations

from typing import ClassVar

from reput_protocol.codes import RequestCode
from reput_protocol.command_header import CommandHeader


class ListGroupsHeader(CommandHeader):
    """Header of LIST_GROUPS: every group that has settings, a member or an offset."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.LIST_GROUPS


class DescribeGroupHeader(CommandHeader):
    """Header of DESCRIBE_GROUP: one group's members, and its progress in all queues or in those of one topic."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.DESCRIBE_GROUP

    group: str
    topic: str | None = None
