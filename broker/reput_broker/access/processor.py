"""Users and rules administered by requests: 3001 to 3010 (RocketMQ: AdminBrokerProcessor, module auth).

What has no counterpart is refused by name: single actions of administration, default policies. Only an administrator
may do any of this, since it could make itself one. No answer has a secret.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import trio

from reput_broker.access.control import AccessControl
from reput_broker.access.model import User, Users, with_altered_user, with_changed_rules, with_new_user
from reput_broker.access.user_file import UserFileRefused
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves
from reput_protocol.codes import RequestCode
from reput_protocol.commands import users as commands
from reput_protocol.errors import ErrorCode
from reput_protocol.rights import Rule

_SUPER, _NORMAL, _ENABLED, _DISABLED = "Super", "Normal", "enable", "disable"


@dataclass(eq=False, repr=False)
class UsersProcessor(Processor):
    """Changes the file with the users, and the users that are in force.

    Args:
        cluster: the name by which rules about the cluster may name it.
    """

    _access: AccessControl
    _cluster: str

    # -- users ---------------------------------------------------------------------------------------------

    @serves(RequestCode.AUTH_CREATE_USER)
    async def create_user(self, request: Request) -> Response:
        """Create a user."""
        name, info = self._named(request)
        fields = _fields(info)

        def create(users: Users) -> Users:
            return with_altered_user(with_new_user(users, User(name, info.password or "")), name, **fields)

        return await self._change(request, create)

    @serves(RequestCode.AUTH_UPDATE_USER)
    async def update_user(self, request: Request) -> Response:
        """Alter a user; what the request leaves out stays."""
        name, info = self._named(request)
        fields = _fields(info)
        return await self._change(request, lambda users: with_altered_user(users, name, **fields))

    @serves(RequestCode.AUTH_DELETE_USER)
    async def delete_user(self, request: Request) -> Response:
        """Delete a user with its rules; there need not be one."""
        name = self._of_the_file(commands.UserHeader.from_ext(request.ext).username)
        return await self._change(request, lambda users: users.without_user(name))

    @serves(RequestCode.AUTH_GET_USER)
    async def get_user(self, request: Request) -> Response:
        """Answer with a user, without its secret; without a body if there is none."""
        name = commands.UserHeader.from_ext(request.ext).username
        user = (await self._users(request)).users.get(name)
        return Response() if user is None else Response(0, body=_shown(user).to_json())

    @serves(RequestCode.AUTH_LIST_USER)
    async def list_users(self, request: Request) -> Response:
        """Answer with the users whose names have the filter in them."""
        wanted = commands.ListUsersHeader.from_ext(request.ext).filter or ""
        users = (await self._users(request)).users.values()
        shown = [_shown(user).to_members() for user in users if wanted in user.name]
        return Response(0, body=msgspec.json.encode(shown))

    # -- rules ---------------------------------------------------------------------------------------------

    @serves(RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL)
    async def put_rules(self, request: Request) -> Response:
        """Set rules of a user or group, in place of those about the same resources."""
        name = _subject(request)
        try:
            rules = commands.AclInfo.from_json(request.body).rules(self._cluster)
        except ValueError as error:
            raise _invalid(str(error)) from None
        if not rules:
            raise _invalid("the request has no rules")
        about = {rule.resource for rule in rules}

        def put(before: tuple[Rule, ...]) -> list[Rule]:
            return [*(rule for rule in before if rule.resource not in about), *rules]

        return await self._change(request, lambda users: with_changed_rules(users, name, put))

    @serves(RequestCode.AUTH_DELETE_ACL)
    async def delete_rules(self, request: Request) -> Response:
        """Delete the rules of a user or group about a resource, or all."""
        name, resource = _subject(request), commands.AclHeader.from_ext(request.ext).resource
        try:
            about = commands.resource_of(resource, self._cluster) if resource else None
        except ValueError as error:
            raise _invalid(str(error)) from None

        def keep(before: tuple[Rule, ...]) -> list[Rule]:
            return [rule for rule in before if about is not None and rule.resource != about]

        return await self._change(request, lambda users: with_changed_rules(users, name, keep))

    @serves(RequestCode.AUTH_GET_ACL)
    async def get_rules(self, request: Request) -> Response:
        """Answer with the rules of a user or group; without a body if it has none."""
        name = _subject(request)
        rules = dict(_subjects(await self._users(request))).get(name)
        return Response(0, body=commands.AclInfo.of(name, rules).to_json()) if rules else Response()

    @serves(RequestCode.AUTH_LIST_ACL)
    async def list_rules(self, request: Request) -> Response:
        """Answer with all rules, as far as their subjects and resources have the filters in them."""
        header = commands.ListAclsHeader.from_ext(request.ext)
        found = []
        for name, rules in _subjects(await self._users(request)):
            acl = commands.AclInfo.of(name, rules)
            (policy,) = acl.policies
            policy.entries = [each for each in policy.entries if (header.resource_filter or "") in each.resource]
            if policy.entries and (header.subject_filter or "") in (acl.subject or ""):
                found.append(acl.to_members())
        return Response(0, body=msgspec.json.encode(found))

    # -- common --------------------------------------------------------------------------------------------

    def _named(self, request: Request) -> tuple[str, commands.UserInfo]:
        name = commands.UserHeader.from_ext(request.ext).username
        return self._of_the_file(name), commands.UserInfo.from_json(request.body)

    def _of_the_file(self, name: str) -> str:
        configured = self._access.configured
        if configured is not None and name == configured.name:
            raise _invalid(
                f"user {name!r} is the administrator of the configuration (access.admin_user); change its secret there"
            )
        return name

    async def _users(self, request: Request) -> Users:
        """Return the users, with the administrator of the configuration."""
        _check_admin(request)
        users, configured = await self._in_thread(self._access.stored), self._access.configured
        return users if configured is None else users.with_user(configured)

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
    user = request.principal
    if user is None or not user.is_admin:
        raise Refusal(ErrorCode.NO_PERMISSION, "only an administrator may see and change users and their rules")


def _fields(info: commands.UserInfo) -> dict[str, Any]:
    """Return what `with_altered_user` changes."""
    kind, status = (info.user_type or "").lower(), (info.user_status or "").lower()
    if kind not in ("", "super", "normal"):
        raise _invalid(f"a user is Super or Normal, not {info.user_type!r}")
    if status not in ("", _ENABLED, _DISABLED):
        raise _invalid(f"a user's status is enable or disable, not {info.user_status!r}")
    return {
        "secret": info.password or None,
        "is_admin": kind == "super" if kind else None,
        "is_enabled": status == _ENABLED if status else None,
        "groups": info.groups,
    }


def _shown(user: User) -> commands.UserInfo:
    return commands.UserInfo(
        user.name,
        user_type=_SUPER if user.is_admin else _NORMAL,
        user_status=_ENABLED if user.is_enabled else _DISABLED,
        groups=list(user.groups) or None,
    )


def _subject(request: Request) -> str:
    try:
        return commands.subject_name(commands.AclHeader.from_ext(request.ext).subject)
    except ValueError as error:
        raise _invalid(str(error)) from None


def _subjects(users: Users) -> list[tuple[str, tuple[Rule, ...]]]:
    """Return the users and groups that have rules."""
    named = [
        *((name, user.rules) for name, user in users.users.items()),
        *((commands.GROUP_MARK + name, rules) for name, rules in users.groups.items()),
    ]
    return [(name, rules) for name, rules in named if rules]
