"""`reput acl ...`: what the users of access control may do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_cli.output import Printer
from reput_cli.user import check_known, note_differences
from reput_cli.user_store import UserStore, user_store_options
from reput_protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from reput_client.users import UserTable
    from reput_protocol.rights import Rule

_GROUP = "@"
_from_option = click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="ADDRESS",
    help="Only for requests from this IP address or network, such as 10.0.0.0/8. Repeatable.  [default: all]",
)


@click.group()
def command() -> None:
    """List, allow and deny what users may do.

    Rights are read, write, admin and describe on topic:PATTERN; read, admin and describe on group:PATTERN; admin,
    describe and replicate on cluster. A pattern is a name, or the beginning of names and *. Every other right
    includes describe. Of the rules that match, those with the longest pattern decide, and among these a denial.

    The commands change the same brokers as those of `reput user`, or the same file.
    """


@command.command(name="list")
@click.argument("name", required=False)
@user_store_options
def list_rules(settings: Settings, store: UserStore, name: str | None) -> int:
    """List the rules of NAME, or of all users and groups. NAME is a user, or @ and a group of rules."""
    table = store.table()
    if name is not None:
        _check_subject(table, name)
    printer = Printer(settings)
    printer.rows(
        ["subject", "decision", "rights", "resource", "from"],
        [
            (
                subject,
                "deny" if rule.is_denial else "allow",
                ",".join(sorted(rule.rights)),
                rule.resource,
                " ".join(map(str, rule.sources)) or None,
            )
            for subject, rules in _subjects(table)
            if name in (None, subject)
            for rule in rules
        ],
    )
    return note_differences(printer, table)


@command.command()
@click.argument("name")
@click.argument("rights")
@click.argument("resources", nargs=-1, required=True)
@_from_option
@user_store_options
def allow(
    settings: Settings,
    store: UserStore,
    name: str,
    rights: str,
    resources: tuple[str, ...],
    sources: tuple[str, ...],
) -> int:
    """Permit NAME the RIGHTS, joined by commas, on each of the RESOURCES.

    NAME is a user, or @ and a group of rules, which is created. reput acl allow alice read,write 'topic:orders*'
    """
    return _put(settings, store, name, _rules_of(rights, resources, sources, is_denial=False))


@command.command()
@click.argument("name")
@click.argument("rights")
@click.argument("resources", nargs=-1, required=True)
@_from_option
@user_store_options
def deny(
    settings: Settings,
    store: UserStore,
    name: str,
    rights: str,
    resources: tuple[str, ...],
    sources: tuple[str, ...],
) -> int:
    """Deny NAME the RIGHTS, joined by commas, on each of the RESOURCES."""
    return _put(settings, store, name, _rules_of(rights, resources, sources, is_denial=True))


@command.command()
@click.argument("name")
@click.argument("resources", nargs=-1)
@user_store_options
def remove(settings: Settings, store: UserStore, name: str, resources: tuple[str, ...]) -> int:
    """Remove the rules of NAME about the RESOURCES; without RESOURCES, all its rules. An empty group is deleted."""
    about = {rule.resource for rule in _rules_of("describe", resources, (), is_denial=False)}
    table = store.table()
    _check_subject(table, name)
    rules = table.rules_of(name) or ()
    # Where brokers differ, one may have a rule that the first does not have.
    if about.isdisjoint(rule.resource for rule in rules) and rules and about and name not in table.differing:
        raise CommandFailed(
            f"{name} has no rule about {' '.join(resources)}",
            remedy=f"reput acl list {name}",
            code=ExitCode.NOT_FOUND,
        )
    store.remove_rules(name, about)
    Printer(settings).note(f"removed rules of {name}")
    return ExitCode.DONE


def _rules_of(
    rights: str, resources: tuple[str, ...], sources: tuple[str, ...], *, is_denial: bool
) -> list[Rule]:
    from reput_protocol.rights import rule_of

    names = [right.strip() for right in rights.split(",")]
    try:
        return [rule_of(each, names, is_denial=is_denial, sources=sources) for each in resources]
    except ValueError as error:
        raise CommandFailed(str(error), reason="nothing was changed", code=ExitCode.USAGE) from error


def _put(settings: Settings, store: UserStore, name: str, rules: list[Rule]) -> int:
    if not name.startswith(_GROUP):
        check_known(store.table(), name)
    store.put_rules(name, {rule.resource for rule in rules}, lambda before: _added(before, rules))
    Printer(settings).note(f"changed rules of {name}")
    return ExitCode.DONE


def _added(rules: tuple[Rule, ...], more: list[Rule]) -> tuple[Rule, ...]:
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


def _check_subject(table: UserTable, name: str) -> None:
    if not name.startswith(_GROUP):
        check_known(table, name)
    elif table.rules_of(name) is None:
        raise CommandFailed(
            f"there is no group of rules {name.removeprefix(_GROUP)!r}",
            remedy="reput acl list",
            code=ExitCode.NOT_FOUND,
        )


def _subjects(table: UserTable) -> list[tuple[str, tuple[Rule, ...]]]:
    return [
        *((name, user.rules) for name, user in sorted(table.users.items())),
        *((_GROUP + name, rules) for name, rules in sorted(table.groups.items())),
    ]
