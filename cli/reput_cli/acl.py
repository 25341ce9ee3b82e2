"""`reput acl ...`: what the users of access control may do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, output_options
from reput_cli.output import Printer
from reput_cli.user import changed, known, loaded, user_file_options
from reput_protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from reput_broker.access.model import Rule, Users
    from reput_broker.access.user_file import UserFile

_GROUP = "@"


@click.group()
def command() -> None:
    """List, allow and deny what users may do.

    Rights are read, write, admin and describe on topic:PATTERN; read, admin and describe on group:PATTERN; admin,
    describe and replicate on cluster. A pattern is a name, or the beginning of names and *. read, write and admin
    include describe. Of the rules that match, those with the longest pattern decide, and among these a denial.
    """


@command.command(name="list")
@click.argument("name", required=False)
@user_file_options
@output_options
def list_rules(settings: Settings, file: UserFile, name: str | None) -> int:
    """List the rules of NAME, or of all users and groups. NAME is a user, or @ and a group of rules."""
    users = loaded(file)
    if name is not None:
        _rules(users, name)
    Printer(settings).rows(
        ["subject", "decision", "rights", "resource"],
        [
            (subject, "deny" if rule.is_denial else "allow", ",".join(sorted(rule.rights)), rule.resource)
            for subject, rules in _subjects(users)
            if name in (None, subject)
            for rule in rules
        ],
    )
    return ExitCode.DONE


@command.command()
@click.argument("name")
@click.argument("rights")
@click.argument("resources", nargs=-1, required=True)
@user_file_options
@output_options
def allow(settings: Settings, file: UserFile, name: str, rights: str, resources: tuple[str, ...]) -> int:
    """Permit NAME the RIGHTS, joined by commas, on each of the RESOURCES.

    NAME is a user, or @ and a group of rules, which is created. reput acl allow alice read,write 'topic:orders*'
    """
    return _put(settings, file, name, rights, resources, is_denial=False)


@command.command()
@click.argument("name")
@click.argument("rights")
@click.argument("resources", nargs=-1, required=True)
@user_file_options
@output_options
def deny(settings: Settings, file: UserFile, name: str, rights: str, resources: tuple[str, ...]) -> int:
    """Deny NAME the RIGHTS, joined by commas, on each of the RESOURCES."""
    return _put(settings, file, name, rights, resources, is_denial=True)


@command.command()
@click.argument("name")
@click.argument("resources", nargs=-1)
@user_file_options
@output_options
def remove(settings: Settings, file: UserFile, name: str, resources: tuple[str, ...]) -> int:
    """Remove the rules of NAME about the RESOURCES; without RESOURCES, all its rules. An empty group is deleted."""
    from reput_broker.access.user_file import rule_of

    def without(users: Users) -> Users:
        about = {rule_of(resource, ["describe"]).resource for resource in resources}
        rules = _rules(users, name)
        left = [rule for rule in rules if about and rule.resource not in about]
        if len(left) == len(rules) and rules:
            raise CommandFailed(
                f"{name} has no rule about {' '.join(resources)}",
                remedy=f"reput acl list {name}",
                code=ExitCode.NOT_FOUND,
            )
        return _with_rules(users, name, tuple(left))

    changed(file, without)
    Printer(settings).note(f"removed rules of {name} in {file.path}")
    return ExitCode.DONE


def _put(
    settings: Settings, file: UserFile, name: str, rights: str, resources: tuple[str, ...], *, is_denial: bool
) -> int:
    from reput_broker.access.user_file import rule_of

    def put(users: Users) -> Users:
        rules = [
            rule_of(resource, [right.strip() for right in rights.split(",")], is_denial=is_denial)
            for resource in resources
        ]
        is_new_group = name.startswith(_GROUP) and name.removeprefix(_GROUP) not in users.groups
        return _with_rules(users, name, _added(() if is_new_group else _rules(users, name), rules))

    changed(file, put)
    Printer(settings).note(f"changed rules of {name} in {file.path}")
    return ExitCode.DONE


def _added(rules: tuple[Rule, ...], more: list[Rule]) -> tuple[Rule, ...]:
    """Return rules with more; those about the same resource are joined, and the new decision about a right counts."""
    found = list(rules)
    for rule in more:
        joined = rule
        for old in [old for old in found if old.resource == rule.resource]:
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


def _rules(users: Users, name: str) -> tuple[Rule, ...]:
    if not name.startswith(_GROUP):
        return known(users, name).rules
    group = name.removeprefix(_GROUP)
    if group not in users.groups:
        raise CommandFailed(
            f"there is no group of rules {group!r}", remedy="reput acl list", code=ExitCode.NOT_FOUND
        )
    return users.groups[group]


def _with_rules(users: Users, name: str, rules: tuple[Rule, ...]) -> Users:
    if not name.startswith(_GROUP):
        return users.with_user(replace(known(users, name), rules=rules))
    group = name.removeprefix(_GROUP)
    return users.with_group(group, rules) if rules else users.without_group(group)


def _subjects(users: Users) -> list[tuple[str, tuple[Rule, ...]]]:
    return [
        *((name, user.rules) for name, user in sorted(users.users.items())),
        *((_GROUP + name, rules) for name, rules in sorted(users.groups.items())),
    ]
