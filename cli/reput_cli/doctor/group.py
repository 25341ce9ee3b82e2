"""`reput doctor group`: the state of one group, as the broker decides it, and its dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from reput_cli.completion import GROUP
from reput_cli.doctor.broker import dead_letters, unreachable
from reput_cli.doctor.findings import Finding, fault, ok, report, warning
from reput_cli.doctor.group_states import advice, unknown_state
from reput_cli.group import health_text
from reput_cli.options import Settings, shared_options
from reput_cli.output import duration_text
from reput_protocol.commands.group_description import HealthState
from reput_protocol.errors import GroupNotFound, ReputError
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted

if TYPE_CHECKING:
    from reput_protocol.commands.group_description import GroupDescription


@click.command("group")
@click.argument("group", metavar="GROUP", type=GROUP)
@shared_options
def command(settings: Settings, group: str) -> int:
    """Check GROUP: its state, with the member and the queue that it concerns, and its dead letters."""
    return report(settings, examine(settings, group))


def examine(settings: Settings, name: str) -> Iterator[Finding]:
    """Yield the findings about a group."""
    try:
        with settings.admin() as admin:
            try:
                found = admin.describe_group(name)
            except GroupNotFound:
                yield fault(
                    "group",
                    f"{name} does not exist",
                    "it has no settings, no member and no offset; perhaps the name is another",
                    "reput group list",
                    ExitCode.NOT_FOUND,
                )
                return
            yield from check_group(found)
            count, age_s = dead_letters(admin, name)
            if count:
                yield warning(
                    "dead letters",
                    f"{counted(count, 'message')}, the last one {duration_text(age_s)} ago",
                    "the group has given them up after all attempts, or at a consumer's request",
                    f"reput dlq peek {name}",
                )
            else:
                yield ok("dead letters", "none")
    except ReputError as error:
        yield unreachable(settings.server, error)


def check_group(found: GroupDescription) -> Iterator[Finding]:
    """Yield the findings about settings, and what the broker says is wrong with the group."""
    summary = found.summary
    name = summary.group
    if summary.consume_enable:
        yield ok("enabled", "the group may consume")
    else:
        yield fault(
            "enabled", "the group may not consume", "it was disabled", f"reput group alter {name} --enable"
        )
    for problem in found.problems:
        yield fault("state", health_text(problem), *advice(name, problem))
    if summary.health.state is HealthState.UNKNOWN:
        yield unknown_state(summary.health)
    elif not found.problems:
        members = counted(summary.members, "member")
        yield ok("state", f"ok, {members} online, {counted(summary.lag, 'message')} to consume")
