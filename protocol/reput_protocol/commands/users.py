"""Administration of users and rules by RocketMQ's tools (3001 to 3010), in the JSON of its module auth."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from reput_protocol.codes import RequestCode
from reput_protocol.commands.body import Body, Members
from reput_protocol.commands.header import CommandHeader


class UserHeader(CommandHeader):
    """Header of 3001 to 3004: which user."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.AUTH_GET_USER

    username: str


class ListUsersHeader(CommandHeader):
    """Header of 3005: a part of the names."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.AUTH_LIST_USER

    filter: str | None = None


class AclHeader(CommandHeader):
    """Header of 3006 to 3009: whose rules, `User:NAME`."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.AUTH_GET_ACL

    subject: str
    policy_type: str | None = None
    resource: str | None = None


class ListAclsHeader(CommandHeader):
    """Header of 3010: parts of the names of users and resources."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.AUTH_LIST_ACL

    subject_filter: str | None = None
    resource_filter: str | None = None


class UserInfo(Body):
    """A user. No answer has the password."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntry(Members):
    """Actions on one resource, `Topic:NAME`, `Group:NAME` or `Cluster:NAME`."""

    resource: str = ""
    actions: list[str] = []
    source_ips: list[str] | None = None
    decision: str = "Allow"


class Policy(Members):
    """Some rules of a user."""

    policy_type: str | None = None
    entries: list[PolicyEntry] = []


class AclInfo(Body):
    """The rules of a user."""

    subject: str | None = None
    policies: list[Policy] = field(default_factory=list)
