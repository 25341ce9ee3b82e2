"""The part of `Admin` for the users of access control and their rules: requests, and their bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from msgspec import DecodeError
from msgspec.json import Decoder

from reput_client.admin.requests import AdminRequests
from reput_client.errors import BrokerNotFound, BrokersFailed
from reput_client.transport.address import Address
from reput_client.users import UserDescription, UserTable, with_rules
from reput_protocol.buffers import Buffer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import MASTER_ID
from reput_protocol.commands.users import (
    GROUP_MARK,
    AclHeader,
    AclInfo,
    UserHeader,
    UserInfo,
    subject_name,
    subject_text,
)
from reput_protocol.errors import BodyMalformed, ReputError, RequestNotSupported
from reput_protocol.rights import Rule
from reput_protocol.wire.header import Value
from reput_protocol.wire.signature import check_new_secret, check_user_name

_NO_USERS: Final = (RequestNotSupported,)
_USERS: Final = Decoder(list[UserInfo])
_RULES: Final = Decoder(list[AclInfo])
T = TypeVar("T")


class UserAdmin(AdminRequests):
    """The methods of `Admin` for users and rules, which administrators may call; errors as there.

    Every broker has users of its own, slaves too, and so has a name server that is not a broker. Changes are made at
    all brokers of the cluster, and at the name servers among the client's addresses. `RequestNotSupported`: none of
    them has access control on.
    """

    async def list_users(self) -> UserTable:
        """Return the users and groups with their rules, where they differ, and what has not answered; no secret."""
        places = await self._user_places()
        users, unreached = await self._list_each(places, RequestCode.AUTH_LIST_USER)
        rules, later = await self._list_each(
            {place: places[place] for place in users}, RequestCode.AUTH_LIST_ACL
        )
        tables = {place: _user_table(users[place], body) for place, body in rules.items()}
        return _combined_table(tables, {**unreached, **later})

    async def create_user(
        self, name: str, secret: str, *, is_admin: bool = False, groups: Iterable[str] = ()
    ) -> None:
        """Create a user, which may do nothing before `put_rules`, unless it is an administrator or has groups.

        If an earlier call reached some brokers only, this one creates the user at the others. Where it is, it gets the
        secret, and if they are given, administration and groups. If a broker does not answer, the others get the user,
        and BrokersFailed names that one.

        Args:
            secret: travels as it is; use TLS, or the machine of the broker.
            groups: of rules; they have to exist.

        Raises:
            BrokerError: every broker has a user of this name, or a group does not exist.
            ValueError: the name or the secret is not valid.
        """
        ext, groups = _user_ext(name), tuple(groups)
        body = _info_body(secret, is_admin, True, groups)
        places = await self._user_places()
        listed, unreached = await self._list_each(places, RequestCode.AUTH_LIST_USER)
        have = {place: places[place] for place, users in listed.items() if name in _user_names(users)}
        lack = {place: places[place] for place in listed if place not in have}
        if lack and have:
            given = _info_body(secret, is_admin or None, None, groups or None)
            await self._ask_all(have, RequestCode.AUTH_UPDATE_USER, ext, f"alter user {name}", given)
        what = f"create user {name}"
        await self._ask_all(lack or have, RequestCode.AUTH_CREATE_USER, ext, what, body, failed=unreached)

    async def alter_user(
        self,
        name: str,
        *,
        secret: str | None = None,
        is_admin: bool | None = None,
        is_enabled: bool | None = None,
        groups: Iterable[str] | None = None,
    ) -> None:
        """Alter a user; what is None stays as it is. `secret` and `groups` as for `create_user`."""
        body = _info_body(secret, is_admin, is_enabled, groups)
        await self._change_users(RequestCode.AUTH_UPDATE_USER, _user_ext(name), f"alter user {name}", body)

    async def delete_user(self, name: str) -> None:
        """Delete a user with its rules; there need not be one."""
        await self._change_users(RequestCode.AUTH_DELETE_USER, _user_ext(name), f"delete user {name}")

    async def put_rules(self, subject: str, rules: Iterable[Rule]) -> None:
        """Set rules of a user or group, in place of those about the same resources.

        Args:
            subject: the name of a user, or `@` and that of a group of rules, which need not exist.
            rules: at least one; `reput_protocol.rights.rule_of` makes them.
        """
        ext, body = _subject_ext(subject), _rules_body(subject, rules)
        await self._change_users(RequestCode.AUTH_UPDATE_ACL, ext, f"rules of {subject}", body)

    async def add_rules(self, subject: str, rules: Iterable[Rule]) -> None:
        """Give a user or group more rules; those about the same resource and sources are joined with them.

        `subject` and `rules` as for `put_rules`.
        """
        more = tuple(rules)
        resources = {rule.resource for rule in more}
        after = with_rules((await self.list_users()).rules_of(subject) or (), more)
        # Also if nothing changes: a broker that was down may not have them.
        await self.put_rules(subject, [rule for rule in after if rule.resource in resources])

    async def delete_rules(self, subject: str, resource: str | None = None) -> None:
        """Delete the rules of a user or group about a resource such as `topic:orders*`, or all.

        A group without rules is deleted; that is refused while a user has it.
        """
        ext = _subject_ext(subject, resource)
        await self._change_users(RequestCode.AUTH_DELETE_ACL, ext, f"rules of {subject}")

    async def _change_users(
        self, code: RequestCode, ext: Mapping[str, Value], what: str, body: bytes = b""
    ) -> None:
        await self._ask_all(await self._user_places(), code, ext, what, body, absent=_NO_USERS)

    async def _list_each(
        self, places: Mapping[str, Address], code: RequestCode
    ) -> tuple[dict[str, Buffer], dict[str, ReputError]]:
        """Return the answers of the places that have users, and the errors of the others that did not answer.

        Raises:
            BrokersFailed: none has answered. If there is only one place, its own error.
        """
        answers: dict[str, Buffer] = {}
        failures: dict[str, ReputError] = {}
        missing: ReputError | None = None
        for place, address in places.items():
            try:
                answers[place] = (await self._ask_all({place: address}, code, {}, "users"))[place].body
            except _NO_USERS as error:
                missing = error
            except ReputError as error:
                self._session.check_open()
                failures[place] = error
        if not answers and len(failures) > 1:
            raise BrokersFailed("users", failures, [])
        if not answers:
            raise next(iter(failures.values())) if failures else missing or BrokerNotFound("", "")
        return answers, failures

    async def _user_places(self) -> dict[str, Address]:
        """Return the addresses of all brokers, slaves included, and of the name servers that the client was given."""
        session = self._session
        info = await session.cluster(session.deadline(None))
        places: dict[str, Address] = {}
        for name, data in sorted(info.broker_addr_table.items()):
            for number in sorted(data.broker_addrs):
                address = session.brokers.address(name, number)
                if address is not None:
                    places[name if number == MASTER_ID else f"{name}, slave {number}"] = address
        for given in (session.home._replace(others=()), *session.home.others):
            known = {address._replace(others=()) for address in places.values()}
            if given not in known and await self._is_name_server(given):
                places[f"name server {given}"] = given
        return places

    async def _is_name_server(self, address: Address) -> bool:
        """Whether it is a name server and no broker: a broker under another address than its own has its users already.

        An address that does not answer counts as one, so that the request that follows reports it.
        """
        try:
            await self._session.ask_ok(
                RequestCode.GET_BROKER_RUNTIME_INFO, {}, what=f"status of {address}", address=address
            )
        except ReputError:
            self._session.check_open()
            return True
        return False


def _info_body(
    secret: str | None, is_admin: bool | None, is_enabled: bool | None, groups: Iterable[str] | None
) -> bytes:
    """Return a user as a request has it; what is None stays as it is. Raises ValueError: the secret is not valid."""
    return UserInfo(
        password=None if secret is None else check_new_secret(secret),
        user_type=None if is_admin is None else "Super" if is_admin else "Normal",
        user_status=None if is_enabled is None else "enable" if is_enabled else "disable",
        groups=None if groups is None else list(groups),
    ).to_json()


def _user_ext(name: str) -> dict[str, Value]:
    """Return the fields of a request about a user. Raises ValueError: the name is not valid."""
    return UserHeader(check_user_name(name)).to_ext()


def _subject_ext(subject: str, resource: str | None = None) -> dict[str, Value]:
    """Return the fields of a request about rules."""
    return AclHeader(subject_text(subject), resource=resource).to_ext()


def _rules_body(subject: str, rules: Iterable[Rule]) -> bytes:
    """Return rules as a request has them."""
    return AclInfo.of(subject, rules).to_json()


def _user_names(body: Buffer) -> set[str]:
    """Return the names in an answer with users. Raises BodyMalformed."""
    return {user.username or "" for user in _decoded(_USERS, body)}


def _decoded(decoder: Decoder[T], body: Buffer) -> T:
    try:
        return decoder.decode(body or b"[]")
    except DecodeError as error:
        raise BodyMalformed(f"the users cannot be read: {error}") from None


def _user_table(users: Buffer, rules: Buffer) -> UserTable:
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


def _combined_table(tables: Mapping[str, UserTable], unreached: Mapping[str, ReputError]) -> UserTable:
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
