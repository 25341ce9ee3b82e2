"""Users of access control and their rules, as `Admin` shows them, and what changes of them would do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from reput_client.preview import Preview
from reput_protocol.commands.users import GROUP_MARK
from reput_protocol.errors import ReputError
from reput_protocol.printable import counted
from reput_protocol.rights import Rule
from reput_protocol.wire.signature import check_user_name


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


# -- what a change would do --------------------------------------------------------------------------------------------


def with_rules(rules: Iterable[Rule], more: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return rules with more.

    Those about the same resource and sources are joined, and the new decision about a right counts.
    """
    found = list(rules)
    for rule in more:
        joined = rule
        for old in [old for old in found if (old.resource, old.sources) == (rule.resource, rule.sources)]:
            position = found.index(old)
            left = old.rights - rule.rights
            if old.is_denial == rule.is_denial:
                joined = replace(joined, rights=joined.rights | old.rights)
                del found[position]
            elif left:
                found[position] = replace(old, rights=left)
            else:
                del found[position]
        found.append(joined)
    return tuple(found)


def rule_text(rule: Rule) -> str:
    """Return a rule in words: `allow read, write on topic:orders* from 10.0.0.0/8`."""
    sources = f" from {', '.join(map(str, rule.sources))}" if rule.sources else ""
    decision = "deny" if rule.is_denial else "allow"
    return f"{decision} {', '.join(sorted(rule.rights))} on {rule.resource}{sources}"


def preview_create_user(
    table: UserTable, name: str, *, is_admin: bool = False, groups: Collection[str] = ()
) -> Preview:
    """Return what creating a user would do. A user of this name is an obstacle, unless some brokers lack it."""
    check_user_name(name)
    if name in table.users and name not in table.differing:
        return _obstacle(f"there is a user {name!r} already", f"reput user alter {name}")
    unknown = [group for group in groups if group not in table.groups]
    if unknown:
        return _obstacle(f"there is no group of rules {unknown[0]!r}", "create it first, with the rules of its members")
    may = "may do everything" if is_admin else "may do nothing before a rule permits it"
    if groups and not is_admin:
        may = f"has the rules of {', '.join(groups)}"
    return Preview(f"user {name} is created, and {may}", _where(table))


def preview_alter_user(
    table: UserTable,
    name: str,
    *,
    has_new_secret: bool = False,
    is_admin: bool | None = None,
    is_enabled: bool | None = None,
    groups: Collection[str] | None = None,
) -> Preview:
    """Return what altering a user would do; what is None stays. A name without a user is an obstacle."""
    user = table.users.get(name)
    if user is None:
        return _no_user(name)
    changes, notes = [], []
    if has_new_secret:
        changes.append("gets another secret")
        notes.append("programs that sign with the old one get errors from now on")
    if is_admin is not None and is_admin != user.is_admin:
        changes.append("may do everything" if is_admin else "may do only what rules permit")
    if is_enabled is not None and is_enabled != user.is_enabled:
        changes.append("is enabled" if is_enabled else "is disabled: its requests are rejected")
    if groups is not None and {*groups} != {*user.groups}:
        changes.append(f"has the rules of {', '.join(groups)}" if groups else "has no group of rules any more")
    if not changes and name not in table.differing:
        return Preview(f"user {name} is like that already", is_change=False)
    return Preview(f"user {name} {', '.join(changes) or 'is made alike on all brokers'}", (*notes, *_where(table)))


def preview_delete_user(table: UserTable, name: str) -> Preview:
    """Return what deleting a user would do. A name without a user is an obstacle."""
    user = table.users.get(name)
    if user is None:
        return _no_user(name)
    notes = (f"it is lost: {rule_text(rule)}" for rule in user.rules)
    return Preview(f"user {name} is deleted with {counted(len(user.rules), 'rule')}", (*notes, *_where(table)))


def preview_rules(table: UserTable, subject: str, rules: Collection[Rule]) -> Preview:
    """Return what more rules of a user, or of `@` and a group, would do."""
    before = table.rules_of(subject)
    if before is None and not subject.startswith(GROUP_MARK):
        return _no_user(subject)
    after = with_rules(before or (), rules)
    text = f"{subject}: {'; '.join(map(rule_text, rules))}"
    if {*after} == {*(before or ())} and subject not in table.differing:
        return Preview(f"{text}: it is so already", is_change=False)
    notes = [f"before: {rule_text(rule)}" for rule in before or () if rule not in after]
    if before is None:
        notes.append(f"the group of rules {subject} is created")
    return Preview(text, (*notes, *_where(table)))


def preview_remove_rules(table: UserTable, subject: str, resources: Collection[str]) -> Preview:
    """Return what removing the rules of a user or group about resources, or all of them, would do."""
    rules = table.rules_of(subject)
    if rules is None:
        if not subject.startswith(GROUP_MARK):
            return _no_user(subject)
        name = subject.removeprefix(GROUP_MARK)
        return _obstacle(f"there is no group of rules {name!r}", "reput acl list")
    gone = [rule for rule in rules if not resources or rule.resource in resources]
    # Where brokers differ, one may have a rule that the first does not have.
    if not gone and rules and subject not in table.differing:
        return _obstacle(f"{subject} has no rule about {' '.join(resources)}", f"reput acl list {subject}")
    text = f"{counted(len(gone), 'rule')} of {subject} {'is' if len(gone) == 1 else 'are'} removed"
    return Preview(text, (*map(rule_text, gone), *_where(table)))


def _no_user(name: str) -> Preview:
    return _obstacle(f"there is no user {name!r}", "reput user list")


def _obstacle(text: str, remedy: str) -> Preview:
    return Preview(text, is_change=False, obstacle=text, remedy=remedy)


def _where(table: UserTable) -> tuple[str, ...]:
    return tuple(f"no response from {place}, where it does not change" for place in sorted(table.unreached))
