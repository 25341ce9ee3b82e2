"""Changes of the users and their rules, the same ones by requests and by commands that edit the file.

Each function returns the users as they are afterwards, and raises ValueError if there is no such user or group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from reput_broker.access.model import User, Users
from reput_protocol.commands.users import GROUP_MARK
from reput_protocol.rights import Rule
from reput_protocol.wire.signature import check_new_secret


def with_new_user(users: Users, user: User) -> Users:
    """Add a user. Raises ValueError if there is one of its name, or its secret is too short for a new one."""
    check_new_secret(user.secret)
    if user.name in users.users:
        raise ValueError(f"there is a user {user.name!r} already")
    return users.with_user(user)


def with_altered_user(
    users: Users,
    name: str,
    *,
    secret: str | None = None,
    is_admin: bool | None = None,
    is_enabled: bool | None = None,
    groups: Iterable[str] | None = None,
) -> Users:
    """Alter a user; what is None stays as it is."""
    user = known_user(users, name)
    return users.with_user(
        replace(
            user,
            secret=user.secret if secret is None else check_new_secret(secret),
            is_admin=user.is_admin if is_admin is None else is_admin,
            is_enabled=user.is_enabled if is_enabled is None else is_enabled,
            groups=user.groups if groups is None else tuple(groups),
        )
    )


def known_user(users: Users, name: str) -> User:
    """Return a user. Raises ValueError."""
    found = users.users.get(name)
    if found is None:
        raise ValueError(f"there is no user {name!r}")
    return found


def rules_of(users: Users, subject: str) -> tuple[Rule, ...]:
    """Return the own rules of a user, or of `@` and a group of rules; a group that does not exist has none."""
    if subject.startswith(GROUP_MARK):
        return users.groups.get(subject.removeprefix(GROUP_MARK), ())
    return known_user(users, subject).rules


def with_changed_rules(
    users: Users, subject: str, change: Callable[[tuple[Rule, ...]], Iterable[Rule]]
) -> Users:
    """Set the rules of a user or group to what `change` makes of them. A group exists while it has rules."""
    rules = tuple(change(rules_of(users, subject)))
    if not subject.startswith(GROUP_MARK):
        return users.with_user(replace(known_user(users, subject), rules=rules))
    group = subject.removeprefix(GROUP_MARK)
    return users.with_group(group, rules) if rules else users.without_group(group)
