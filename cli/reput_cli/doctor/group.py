"""`reput doctor group`: the state of one group, as the broker decides it, and its dead letters; the check of all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from reput_cli.completion import GROUP
from reput_cli.doctor.findings import Finding, fault, ok, report, unreachable, warning
from reput_cli.group import health_text
from reput_cli.options import Settings, shared_options
from reput_cli.output import duration_text
from reput_protocol.commands.group_description import GroupDescription, GroupHealth, GroupSummary, HealthState
from reput_protocol.errors import GroupNotFound, ReputError, TopicNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import DLQ_PREFIX
from reput_protocol.printable import counted

if TYPE_CHECKING:
    from reput_client.blocking import Admin


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
                    "every attempt of the group failed, or a consumer rejected them",
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


def dead_letters(admin: Admin, group: str) -> tuple[int, float]:
    """Return the number of dead letters of a group, and the age of the last one in seconds."""
    try:
        queues = admin.topic_stats(DLQ_PREFIX + group).offset_table.values()
    except TopicNotFound:
        return 0, 0.0
    count = sum(queue.max_offset - queue.min_offset for queue in queues)
    last_ms = max((queue.last_update_timestamp for queue in queues), default=0)
    return count, max(0.0, time.time() - last_ms / 1000)


def check_groups(groups: list[GroupSummary]) -> Iterator[Finding]:
    """Name each group that is not well, as the broker says."""
    ill = [group for group in groups if group.health.is_fault]
    for group in sorted(ill, key=lambda group: -group.health.gravity):
        yield fault(
            "groups",
            f"{group.group} is {health_text(group.health)}",
            advice(group.group, group.health)[0],
            f"reput doctor group {group.group}",
        )
    unknown = [group for group in groups if group.health.state is HealthState.UNKNOWN]
    if unknown:
        yield unknown_state(unknown[0].health)
    elif not ill:
        yield ok("groups", f"{counted(len(groups), 'group')}, all are well")


def unknown_state(health: GroupHealth) -> Finding:
    """Return the finding that the broker does not say whether a group is well."""
    return warning(
        "state",
        "the broker does not say whether the group is well",
        health.reason or "it is of an earlier version",
        "reput cluster status names the master; upgrade the broker",
    )


def advice(name: str, problem: GroupHealth) -> tuple[str, str]:
    """Return the usual cause of a state, and what to do."""
    match problem.state:
        case HealthState.CONFLICTING:
            return (
                "two programs share the group's name, or a new version is being rolled out; each message goes to one "
                "member, and what that does not want is lost to the others",
                "give each program its own group; the log event subscription_conflict names the members",
            )
        case HealthState.EMPTY:
            return (
                "the program does not run, cannot connect, or has another group name",
                f"start it and read its log; an unused group: reput group delete {name}",
            )
        case HealthState.STUCK if problem.client_id:
            return (
                "the member hangs, or fails in this message again and again",
                f"read the log of that member; to pass over the message: reput group skip {name} {problem.topic} "
                f"--queue {problem.queue_id} --count 1",
            )
        case HealthState.STUCK:
            return (
                "members are still joining, or none of them subscribes to the topic",
                f"reput group members {name}, and again in a minute",
            )
    return (
        "its members are too slow, or too few",
        f"reput group describe {name}; add members, at most one for each queue",
    )
