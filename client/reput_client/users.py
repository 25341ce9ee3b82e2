"""Users of access control and their rules, as `Admin` shows and sends them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec import DecodeError
from msgspec.json import Decoder

from reput_protocol.buffers import Buffer
from reput_protocol.commands.users import (
    GROUP_MARK,
    AclHeader,
    AclInfo,
    UserHeader,
    UserInfo,
    subject_name,
    subject_text,
)
from reput_protocol.errors import BodyMalformed, ReputError
from reput_protocol.rights import Rule
from reput_protocol.signature import check_new_secret, check_user_name
from reput_protocol.wire.header import HeaderType, Value

_USERS = Decoder(list[UserInfo])
_RULES = Decoder(list[AclInfo])
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UserDescription:
    """A user as brokers show it, without its secret."""

    name: str
    is_admin: bool = False
    is_enabled: bool = True
    groups: tuple[str, ...] = ()
    """The groups whose rules it has besides its own."""
    rules: tuple[Rule, ...] = ()
    """Its own rules."""


@dataclass(frozen=True, slots=True)
class UserTable:
    """The users of a cluster, and the groups of rules."""

    users: Mapping[str, UserDescription] = field(default_factory=dict)
    groups: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    differing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of a user, or `@` and a group: the brokers where it is missing, or is not as here. Secrets are not compared."""
    unreached: Mapping[str, ReputError] = field(default_factory=dict)
    """The brokers that have not answered, each with its error."""

    def rules_of(self, subject: str) -> tuple[Rule, ...] | None:
        """Return the own rules of a user, or of `@` and a group; None if there is none of this name."""
        if subject.startswith(GROUP_MARK):
            return self.groups.get(subject.removeprefix(GROUP_MARK))
        user = self.users.get(subject)
        return None if user is None else user.rules


def info_body(
    secret: str | None, is_admin: bool | None, is_enabled: bool | None, groups: Iterable[str] | None
) -> bytes:
    """Return a user as a request has it; what is None stays as it is. Raises ValueError: the secret is not valid."""
    return UserInfo(
        password=None if secret is None else check_new_secret(secret),
        user_type=None if is_admin is None else "Super" if is_admin else "Normal",
        user_status=None if is_enabled is None else "enable" if is_enabled else "disable",
        groups=None if groups is None else list(groups),
    ).to_json()


def user_ext(name: str) -> dict[str, Value]:
    """Return the fields of a request about a user. Raises ValueError: the name is not valid."""
    return UserHeader(check_user_name(name)).to_ext(HeaderType.MSGPACK)


def subject_ext(subject: str, resource: str | None = None) -> dict[str, Value]:
    """Return the fields of a request about rules."""
    return AclHeader(subject_text(subject), resource=resource).to_ext(HeaderType.MSGPACK)


def rules_body(subject: str, rules: Iterable[Rule]) -> bytes:
    """Return rules as a request has them."""
    return AclInfo.of(subject, rules).to_json()


def user_names(body: Buffer) -> set[str]:
    """Return the names in an answer with users. Raises BodyMalformed."""
    return {user.username or "" for user in _decoded(_USERS, body)}


def _decoded(decoder: Decoder[T], body: Buffer) -> T:
    try:
        return decoder.decode(body or b"[]")
    except DecodeError as error:
        raise BodyMalformed(f"the users cannot be read: {error}") from None


def user_table(users: Buffer, rules: Buffer) -> UserTable:
    """Return what one broker has, of its answers. Raises BodyMalformed."""
    by_subject: dict[str, tuple[Rule, ...]] = {}
    try:
        for acl in _decoded(_RULES, rules):
            by_subject[subject_name(acl.subject or "")] = tuple(acl.rules())
    except ValueError as error:
        raise BodyMalformed(f"the rules cannot be read: {error}") from None
    found = {}
    for info in _decoded(_USERS, users):
        name = info.username or ""
        found[name] = UserDescription(
            name,
            (info.user_type or "").lower() == "super",
            (info.user_status or "enable").lower() == "enable",
            tuple(info.groups or ()),
            by_subject.get(name, ()),
        )
    groups = {
        name.removeprefix(GROUP_MARK): rules
        for name, rules in by_subject.items()
        if name.startswith(GROUP_MARK)
    }
    return UserTable(found, groups)


def combined_table(tables: Mapping[str, UserTable], unreached: Mapping[str, ReputError]) -> UserTable:
    """Return what all brokers that have answered have together, from the first that has it, and where it differs."""
    users: dict[str, UserDescription] = {}
    groups: dict[str, tuple[Rule, ...]] = {}
    for table in tables.values():
        users = {**table.users, **users}
        groups = {**table.groups, **groups}
    differing: dict[str, tuple[str, ...]] = {}
    for name, user in users.items():
        differing[name] = tuple(
            place
            for place, table in tables.items()
            if _comparable(table.users.get(name)) != _comparable(user)
        )
    for name, rules in groups.items():
        differing[GROUP_MARK + name] = tuple(
            place for place, table in tables.items() if {*table.groups.get(name, ())} != {*rules}
        )
    found = {name: places for name, places in differing.items() if places}
    return UserTable(users, groups, found, unreached)


def _comparable(user: UserDescription | None) -> object:
    return None if user is None else (user.is_admin, user.is_enabled, {*user.groups}, {*user.rules})
