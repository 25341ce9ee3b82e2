"""Users and rules administered by RocketMQ's tools: 3001 to 3010 (RocketMQ: AdminBrokerProcessor, module auth).

RocketMQ's actions are mapped to rights: Pub to write, Sub to read, Create, Update and Delete together to admin, Get and
List to describe. What has no counterpart is refused by name: single actions of administration, source addresses,
default policies. Only an administrator may do any of this, since it could make itself one. No answer has a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
import trio

from reput_broker.access.control import AccessControl
from reput_broker.access.model import RIGHTS_OF, Kind, Right, Rule, User, Users
from reput_broker.access.user_file import UserFileRefused, rule_of
from reput_broker.request import Handler, Refusal, Request, Response
from reput_protocol.codes import RequestCode
from reput_protocol.commands.users import (
    AclHeader,
    AclInfo,
    ListAclsHeader,
    ListUsersHeader,
    PolicyEntry,
    UserHeader,
    UserInfo,
)
from reput_protocol.errors import ErrorCode

_SUBJECT: Final = "User:"
_SUPER, _NORMAL, _ENABLED, _DISABLED = "Super", "Normal", "enable", "disable"
_ALL: Final = frozenset({"ALL", "ANY"})
_ADMINISTER: Final = frozenset({"CREATE", "UPDATE", "DELETE"})
_DESCRIBE: Final = frozenset({"GET", "LIST"})
_PUB, _SUB = "PUB", "SUB"
_ACTIONS: Final = {
    Right.WRITE: ("Pub",),
    Right.READ: ("Sub",),
    Right.ADMIN: ("Create", "Update", "Delete"),
    Right.DESCRIBE: ("Get", "List"),
}


class UsersProcessor:
    """Changes the file with the users, and the users that are in force.

    Args:
        cluster: the name by which rules about the cluster may name it.
    """

    def __init__(self, access: AccessControl, cluster: str) -> None:
        self._access = access
        self._cluster = cluster

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_GET_USER: self.get_user,
            RequestCode.AUTH_LIST_USER: self.list_users,
            RequestCode.AUTH_CREATE_ACL: self.put_rules,
            RequestCode.AUTH_UPDATE_ACL: self.put_rules,
            RequestCode.AUTH_DELETE_ACL: self.delete_rules,
            RequestCode.AUTH_GET_ACL: self.get_rules,
            RequestCode.AUTH_LIST_ACL: self.list_rules,
        }

    # -- users ---------------------------------------------------------------------------------------------

    async def create_user(self, request: Request) -> Response:
        """Create a user."""
        name, info = _named(request)

        def create(users: Users) -> Users:
            if name in users.users:
                raise ValueError(f"there is a user {name!r} already")
            return users.with_user(_altered(User(name, info.password or ""), info))

        return await self._change(request, create)

    async def update_user(self, request: Request) -> Response:
        """Alter a user; what the request leaves out stays."""
        name, info = _named(request)

        def update(users: Users) -> Users:
            return users.with_user(_altered(_known(users, name), info))

        return await self._change(request, update)

    async def delete_user(self, request: Request) -> Response:
        """Delete a user with its rules; there need not be one."""
        name = UserHeader.from_ext(request.ext).username
        return await self._change(request, lambda users: users.without_user(name))

    async def get_user(self, request: Request) -> Response:
        """Answer with a user, without its secret; without a body if there is none."""
        name = UserHeader.from_ext(request.ext).username
        user = (await self._users(request)).users.get(name)
        return Response() if user is None else Response(0, body=msgspec.json.encode(_user_members(user)))

    async def list_users(self, request: Request) -> Response:
        """Answer with the users whose names have the filter in them."""
        wanted = ListUsersHeader.from_ext(request.ext).filter or ""
        users = (await self._users(request)).users.values()
        return Response(
            0, body=msgspec.json.encode([_user_members(user) for user in users if wanted in user.name])
        )

    # -- rules ---------------------------------------------------------------------------------------------

    async def put_rules(self, request: Request) -> Response:
        """Set rules of a user, in place of those about the same resources."""
        name = _subject(AclHeader.from_ext(request.ext).subject)
        info = AclInfo.from_json(request.body)
        try:
            rules = [self._rule(entry) for policy in info.policies for entry in policy.entries]
        except ValueError as error:
            raise _invalid(str(error)) from None
        if any((policy.policy_type or "Custom").upper() != "CUSTOM" for policy in info.policies):
            raise _invalid("there are no default policies; give custom ones")
        if not rules:
            raise _invalid("the request has no rules")
        about = {rule.resource for rule in rules}

        def put(users: Users) -> Users:
            user = _known(users, name)
            kept = [rule for rule in user.rules if rule.resource not in about]
            return users.with_user(replace(user, rules=(*kept, *rules)))

        return await self._change(request, put)

    async def delete_rules(self, request: Request) -> Response:
        """Delete the rules of a user about a resource, or all."""
        header = AclHeader.from_ext(request.ext)
        name = _subject(header.subject)
        about = None
        if header.resource:
            try:
                about = self._resource(header.resource)
            except ValueError as error:
                raise _invalid(str(error)) from None

        def delete(users: Users) -> Users:
            user = _known(users, name)
            kept = () if about is None else tuple(rule for rule in user.rules if rule.resource != about)
            return users.with_user(replace(user, rules=kept))

        return await self._change(request, delete)

    async def get_rules(self, request: Request) -> Response:
        """Answer with the rules of a user; without a body if it has none."""
        name = _subject(AclHeader.from_ext(request.ext).subject)
        user = (await self._users(request)).users.get(name)
        if user is None or not user.rules:
            return Response()
        return Response(0, body=msgspec.json.encode(_acl_members(user, user.rules)))

    async def list_rules(self, request: Request) -> Response:
        """Answer with the rules of all users, as far as their subjects and resources have the filters in them."""
        header = ListAclsHeader.from_ext(request.ext)
        found = []
        for user in (await self._users(request)).users.values():
            rules = [rule for rule in user.rules if (header.resource_filter or "") in _resource_text(rule)]
            if rules and (header.subject_filter or "") in _SUBJECT + user.name:
                found.append(_acl_members(user, rules))
        return Response(0, body=msgspec.json.encode(found))

    def _rule(self, entry: PolicyEntry) -> Rule:
        if entry.source_ips:
            raise ValueError("rules have no source addresses here; leave them out")
        if entry.decision.upper() not in ("ALLOW", "DENY"):
            raise ValueError(f"a decision is Allow or Deny, not {entry.decision!r}")
        resource = self._resource(entry.resource)
        rights = _rights_of(Kind(resource.partition(":")[0]), entry.actions)
        return rule_of(resource, sorted(rights), is_denial=entry.decision.upper() == "DENY")

    def _resource(self, text: str) -> str:
        """Return a resource of RocketMQ as rules have it. Raises ValueError."""
        kind, _, pattern = text.partition(":")
        if kind.lower() == Kind.CLUSTER and pattern == self._cluster:
            pattern = "*"
        return rule_of(f"{kind.lower()}:{pattern}", [Right.DESCRIBE]).resource

    # -- common --------------------------------------------------------------------------------------------

    async def _users(self, request: Request) -> Users:
        _check_admin(request)
        return await self._in_thread(self._access.stored)

    async def _change(self, request: Request, change: Callable[[Users], Users]) -> Response:
        _check_admin(request)
        await self._in_thread(partial(self._access.change, change))
        return Response()

    async def _in_thread(self, work: Callable[[], Users]) -> Users:
        try:
            return await trio.to_thread.run_sync(work)
        except UserFileRefused as error:
            raise Refusal(ErrorCode.READ_ONLY, str(error)) from error
        except ValueError as error:
            raise _invalid(str(error)) from None


def _invalid(text: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_ARGUMENT, f"{text}; nothing was changed")


def _check_admin(request: Request) -> None:
    request.client.note_role("admin")
    user = request.principal
    if user is None or not user.is_admin:
        raise Refusal(
            ErrorCode.NO_PERMISSION, "only an administrator may see and change users and their rules"
        )


def _named(request: Request) -> tuple[str, UserInfo]:
    return UserHeader.from_ext(request.ext).username, UserInfo.from_json(request.body)


def _known(users: Users, name: str) -> User:
    found = users.users.get(name)
    if found is None:
        raise ValueError(f"there is no user {name!r}")
    return found


def _altered(user: User, info: UserInfo) -> User:
    """Return a user with what the request has. Raises ValueError."""
    kind, status = (info.user_type or "").lower(), (info.user_status or "").lower()
    if kind not in ("", "super", "normal"):
        raise ValueError(f"a user is Super or Normal, not {info.user_type!r}")
    if status not in ("", _ENABLED, _DISABLED):
        raise ValueError(f"a user's status is enable or disable, not {info.user_status!r}")
    return replace(
        user,
        secret=info.password or user.secret,
        is_admin=kind == "super" if kind else user.is_admin,
        is_enabled=status == _ENABLED if status else user.is_enabled,
    )


def _user_members(user: User) -> dict[str, str]:
    return {
        "username": user.name,
        "userType": _SUPER if user.is_admin else _NORMAL,
        "userStatus": _ENABLED if user.is_enabled else _DISABLED,
    }


def _subject(text: str) -> str:
    kind, colon, name = text.partition(":")
    if not colon or kind.lower() != "user":
        raise _invalid(f"{text!r} is not a user; write User:NAME")
    return name


def _rights_of(kind: Kind, actions: Iterable[str]) -> frozenset[Right]:
    """Return the rights of RocketMQ's actions on a resource. Raises ValueError."""
    given = {action.strip().upper() for action in actions}
    if given & _ALL:
        return RIGHTS_OF[kind]
    unknown = given - _ADMINISTER - _DESCRIBE - {_PUB, _SUB}
    if unknown or not given:
        raise ValueError(f"{', '.join(sorted(unknown)) or 'nothing'} is not an action of RocketMQ")
    if given & _ADMINISTER and not given >= _ADMINISTER:
        raise ValueError("Create, Update and Delete are one right here, admin; give all three or none")
    if kind is Kind.GROUP and _SUB in given:
        given.discard(
            _PUB
        )  # it means nothing for a group, and tools give the same actions on topics and groups
    rights = {
        Right.WRITE: _PUB in given,
        Right.READ: _SUB in given,
        Right.ADMIN: given >= _ADMINISTER,
        Right.DESCRIBE: bool(given & _DESCRIBE),
    }
    return frozenset(right for right, is_given in rights.items() if is_given)


def _resource_text(rule: Rule) -> str:
    return f"{rule.kind.value.capitalize()}:{rule.pattern}"


def _acl_members(user: User, rules: Iterable[Rule]) -> dict[str, Any]:
    entries = []
    for rule in rules:
        actions = [
            action for right in rule.rights for action in _ACTIONS.get(right, (right.value.capitalize(),))
        ]
        entries.append(
            {
                "resource": _resource_text(rule),
                "actions": ["All"] if rule.rights == RIGHTS_OF[rule.kind] else sorted(actions),
                "decision": "Deny" if rule.is_denial else "Allow",
            }
        )
    return {"subject": _SUBJECT + user.name, "policies": [{"policyType": "Custom", "entries": entries}]}
