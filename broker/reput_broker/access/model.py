"""Users, groups of rules, and what a user may do.

Of the rules that match, those with the most specific pattern decide, and among these a denial wins, as in RocketMQ 5.
What no rule permits is refused. An administrator may do everything.

The functions that change users are the same for requests and for commands that edit the file. Each returns the users as
they are afterwards, and raises ValueError if there is no such user or group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Final, NamedTuple

from reput_protocol.commands.users import GROUP_MARK
from reput_protocol.names import BENCHMARK_TOPIC, DEFAULT_TOPIC, DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS, TRACE_TOPIC
from reput_protocol.rights import ANY, Kind, Right, Rule, source_of
from reput_protocol.wire.signature import check_new_secret, check_secret, check_user_name

_SYSTEM_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_")
_ORDINARY_SYSTEM_TOPICS: Final = frozenset({BENCHMARK_TOPIC})
_KEPT_DECISIONS_MAX: Final = 4096
_KEPT_SOURCES_MAX: Final = 256


class Need(NamedTuple):
    """A right that a request needs."""

    right: Right
    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        on = "the cluster" if self.kind is Kind.CLUSTER else f"{self.kind.value} {self.name!r}"
        return f"{self.right.value!r} on {on}"

    @property
    def resource(self) -> str:
        """The resource as commands and rules have it: `topic:orders`."""
        return f"{self.kind.value}:{self.name or ANY}"

    @property
    def decisive(self) -> Need | None:
        """The right that decides about it; None: every user has it, or to send traces, every one with messages.

        The retry and dead-letter topics of a group belong to the group, and system topics to the cluster, since they
        hold messages of all topics.
        """
        right, kind, name = self
        if kind is not Kind.TOPIC:
            return self
        if name.startswith(RETRY_PREFIX):
            return Need(Right.READ if right is Right.WRITE else right, Kind.GROUP, name.removeprefix(RETRY_PREFIX))
        if name.startswith(DLQ_PREFIX):
            return Need(Right.ADMIN if right is Right.WRITE else right, Kind.GROUP, name.removeprefix(DLQ_PREFIX))
        is_system = name in SYSTEM_TOPICS or name.startswith(_SYSTEM_PREFIXES)
        if not is_system or name in _ORDINARY_SYSTEM_TOPICS:
            return self
        if (name == TRACE_TOPIC and right is Right.WRITE) or (
            name in (DEFAULT_TOPIC, TRACE_TOPIC) and right is Right.DESCRIBE
        ):
            return None
        return Need(Right.DESCRIBE if right is Right.DESCRIBE else Right.ADMIN, Kind.CLUSTER)


_SENDS_TRACES: Final = Need(Right.WRITE, Kind.TOPIC, TRACE_TOPIC)


@dataclass(frozen=True, slots=True)
class User:
    """A user as it is stored. `secret` is never shown."""

    name: str
    secret: str = field(repr=False)
    is_admin: bool = False
    is_enabled: bool = True
    groups: tuple[str, ...] = ()
    """The groups whose rules it has besides its own."""
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        check_user_name(self.name)
        check_secret(self.secret)


@dataclass(frozen=True, slots=True)
class Users:
    """All users, and the groups of rules.

    Raises:
        ValueError: a user is in a group that does not exist.
    """

    users: Mapping[str, User] = field(default_factory=dict)
    groups: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.groups:
            check_user_name(name)
        for user in self.users.values():
            for group in user.groups:
                if group not in self.groups:
                    raise ValueError(
                        f"user {user.name!r} is in group {group!r}, which does not exist; create it first, "
                        "with the rules of its members"
                    )

    def with_user(self, user: User) -> Users:
        """Return the users with one more, or with another one of this name."""
        return replace(self, users={**self.users, user.name: user})

    def without_user(self, name: str) -> Users:
        """Return the users without one."""
        return replace(self, users={known: user for known, user in self.users.items() if known != name})

    def with_group(self, name: str, rules: Iterable[Rule]) -> Users:
        """Return the users with one more group of rules, or with another one of this name."""
        return replace(self, groups={**self.groups, name: tuple(rules)})

    def without_group(self, name: str) -> Users:
        """Return the users without a group of rules. Raises ValueError while a user is in it."""
        return replace(self, groups={known: rules for known, rules in self.groups.items() if known != name})

    def rules_of(self, user: User) -> tuple[Rule, ...]:
        """Return the rules that apply to a user: its own and those of its groups."""
        return (*user.rules, *(rule for group in user.groups for rule in self.groups[group]))


class Account:
    """A user whose requests are checked: its secret, and its rights with the last decisions kept."""

    __slots__ = ("_by_source", "_depends_on_source", "_kept", "_rules", "_user", "is_admin", "name", "secret")

    def __init__(self, user: User, rules: tuple[Rule, ...]) -> None:
        self._user = user
        self._by_source: dict[str, Account] = {}
        self._depends_on_source = any(rule.sources for rule in rules)
        self.name = user.name
        self.secret = user.secret.encode()
        self.is_admin = user.is_admin
        self._rules = rules
        self._kept: dict[Need, bool] = {}

    def seen_from(self, host: str) -> Account:
        """Return the user with those of its rules that concern requests of an address."""
        if not self._depends_on_source:
            return self
        found = self._by_source.get(host)
        if found is None:
            if len(self._by_source) >= _KEPT_SOURCES_MAX:
                self._by_source.clear()
            address = source_of(host)
            rules = [replace(rule, sources=()) for rule in self._rules if rule.concerns_source(address)]
            found = self._by_source[host] = Account(self._user, tuple(rules))
        return found

    def may(self, need: Need) -> bool:
        """Whether the user has a right."""
        if self.is_admin:
            return True
        decision = self._kept.get(need)
        if decision is None:
            if len(self._kept) >= _KEPT_DECISIONS_MAX:
                self._kept.clear()
            rule = self.deciding_rule(need)
            decision = not rule.is_denial if rule is not None else need.decisive is None
            if need == _SENDS_TRACES:
                decision = self._has_messages()
            self._kept[need] = decision
        return decision

    def permits(self, right: str, kind: str, name: str = "") -> bool:
        """Like `may`, with the parts of the need."""
        return self.may(Need(Right(right), Kind(kind), name))

    def _has_messages(self) -> bool:
        """Whether the user may send or consume something, which clients report in traces."""
        return any(
            not rule.is_denial and rule.kind is not Kind.CLUSTER and rule.rights & {Right.READ, Right.WRITE}
            for rule in self._rules
        )

    def may_write_something(self) -> bool:
        """Whether the user may send to any topic."""
        return self.may_somewhere(Right.WRITE, Kind.TOPIC)

    def may_somewhere(self, right: Right, kind: Kind) -> bool:
        """Whether a rule permits a right on some name of a kind."""
        return self.is_admin or any(
            rule.kind is kind and rule.concerns(right) and not rule.is_denial for rule in self._rules
        )

    def deciding_rule(self, need: Need) -> Rule | None:
        """Return the rule that permits or denies a right; None if none concerns it."""
        if need.decisive is None:
            return None
        right, kind, name = need.decisive
        closest, deciding = -1, None
        for rule in self._rules:
            if rule.kind is not kind or not rule.concerns(right):
                continue
            found = rule.specificity(name)
            if found is None or found < closest:
                continue
            if found > closest or rule.is_denial:
                closest, deciding = found, rule
        return deciding


OPERATOR: Final = Account(User("console", token_hex(32), is_admin=True), ())
"""Sends the requests of the broker's own pages, which have checked their user. No network request can be its."""

STRANGER: Final = Account(User("stranger", token_hex(32), is_enabled=False), ())
"""Stands for the sender of a request that needs no user. It has no rights."""


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


def with_changed_rules(users: Users, subject: str, change: Callable[[tuple[Rule, ...]], Iterable[Rule]]) -> Users:
    """Set the rules of a user or group to what `change` makes of them. A group exists while it has rules."""
    rules = tuple(change(rules_of(users, subject)))
    if not subject.startswith(GROUP_MARK):
        return users.with_user(replace(known_user(users, subject), rules=rules))
    group = subject.removeprefix(GROUP_MARK)
    return users.with_group(group, rules) if rules else users.without_group(group)
