"""`reput acl ...`: what the users of access control may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, added
from reput_cli.output import Printer
from reput_cli.preview import dry_run_option, show
from reput_cli.user_store import UserStore, check_known, note_differences, remove_rules, user_store_options
from reput_protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from reput_client.users import UserTable
    from reput_protocol.rights import Rule

_GROUP = "@"
_rules_options = added(
    click.argument("name"),
    click.argument("rights"),
    click.argument("resources", nargs=-1, required=True),
    click.option(
        "--from",
        "sources",
        multiple=True,
        metavar="ADDRESS",
        help="Only for requests from this IP address or network, such as 10.0.0.0/8. Repeatable.  [default: all]",
    ),
    dry_run_option,
    user_store_options,
)


@click.group()
def command() -> None:
    """List, allow and deny what users may do.

    Rights are read, write, admin and describe on topic:PATTERN; read, admin and describe on group:PATTERN; admin,
    describe and replicate on cluster. A pattern is a name, or a prefix and *. Every other right
    includes describe. Of the rules that match, those with the longest pattern decide, and among these a denial.

    The commands change the same brokers as those of `reput user`, or the same file.
    """


@command.command(name="list")
@click.argument("name", required=False)
@user_store_options
def list_rules(settings: Settings, store: UserStore, name: str | None) -> int:
    """List the rules of NAME, or of all users and groups. NAME is a user, or @ and a named set of rules."""
    table = store.list_users()
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
@_rules_options
def allow(**given: Any) -> int:
    """Permit NAME the RIGHTS, joined by commas, on each of the RESOURCES.

    NAME is a user, or @ and a named set of rules, which is created. reput acl allow alice read,write 'topic:orders*'
    """
    return _put(**given, is_denial=False)


@command.command()
@_rules_options
def deny(**given: Any) -> int:
    """Deny NAME the RIGHTS, joined by commas, on each of the RESOURCES."""
    return _put(**given, is_denial=True)


@command.command()
@click.argument("name")
@click.argument("resources", nargs=-1)
@dry_run_option
@user_store_options
def remove(settings: Settings, store: UserStore, name: str, resources: tuple[str, ...], dry_run: bool) -> int:
    """Remove the rules of NAME about the RESOURCES; without RESOURCES, all its rules. An empty set is deleted."""
    from reput_client.users import preview_remove_rules

    about = {rule.resource for rule in _rules_of("describe", resources, (), is_denial=False)}
    table = store.list_users()
    _check_subject(table, name)
    preview = preview_remove_rules(table, name, about)
    if preview.obstacle is not None:
        raise CommandFailed(preview.obstacle, remedy=preview.remedy, code=ExitCode.NOT_FOUND)
    if dry_run:
        show(settings, preview)
        return ExitCode.DONE
    remove_rules(store, name, about)
    Printer(settings).note(f"removed rules of {name}")
    return ExitCode.DONE


def _rules_of(rights: str, resources: tuple[str, ...], sources: tuple[str, ...], *, is_denial: bool) -> list[Rule]:
    from reput_protocol.rights import rule_of

    names = [right.strip() for right in rights.split(",")]
    try:
        return [rule_of(each, names, is_denial=is_denial, sources=sources) for each in resources]
    except ValueError as error:
        raise CommandFailed(str(error), reason="nothing was changed", code=ExitCode.USAGE) from error


def _put(
    settings: Settings,
    store: UserStore,
    name: str,
    rights: str,
    resources: tuple[str, ...],
    sources: tuple[str, ...],
    dry_run: bool,
    is_denial: bool,
) -> int:
    from reput_client.users import preview_rules

    rules = _rules_of(rights, resources, sources, is_denial=is_denial)
    table = store.list_users()
    if not name.startswith(_GROUP):
        check_known(table, name)
    if dry_run:
        show(settings, preview_rules(table, name, rules))
        return ExitCode.DONE
    store.add_rules(name, rules)
    Printer(settings).note(f"changed rules of {name}")
    return ExitCode.DONE


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
