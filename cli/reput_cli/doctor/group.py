"""`reput doctor group`: members, subscriptions, stuck queues and dead letters of one group."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from reput_cli.completion import GROUP
from reput_cli.doctor.broker import dead_letters, unreachable
from reput_cli.doctor.findings import Finding, fault, ok, report, warning
from reput_cli.options import Settings, shared_options
from reput_cli.output import duration_text
from reput_protocol.errors import GroupNotFound, ReputError
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted

if TYPE_CHECKING:
    from reput_protocol.commands.group_description import GroupDescription, GroupQueue

STUCK_S = 60.0
"""A queue is stuck if its oldest message and the group's last commit in it are older."""


@click.command("group")
@click.argument("group", metavar="GROUP", type=GROUP)
@shared_options
def command(settings: Settings, group: str) -> int:
    """Check GROUP: members, their subscriptions, queues that do not move on, dead letters."""
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
    """Yield the findings about members, subscriptions and queues."""
    summary = found.summary
    name = summary.group
    if summary.consume_enable:
        yield ok("enabled", "the group may consume")
    else:
        yield fault(
            "enabled", "the group may not consume", "it was disabled", f"reput group alter {name} --enable"
        )
    if found.members:
        yield ok("members", f"{counted(len(found.members), 'member')} online")
    elif summary.lag:
        yield fault(
            "members",
            f"no member is online, and {counted(summary.lag, 'message')} wait",
            "the program does not run, cannot connect, or has another group name",
            "start it and read its log; an unused group: reput group delete " + name,
        )
    else:
        yield warning(
            "members",
            "no member is online",
            "nothing waits now; programs that pull without joining are no members",
            f"reput group describe {name}",
        )
    if summary.has_conflict:
        yield fault(
            "subscriptions",
            "members subscribe to different topics or filters",
            "two programs share the group's name, or a new version is being rolled out",
            "give each program a group of its own; the log event subscription_conflict names two members",
        )
    else:
        yield ok("subscriptions", "all members agree")
    yield from _check_queues(found)


def _check_queues(found: GroupDescription) -> Iterator[Finding]:
    name, behind = found.summary.group, [queue for queue in found.queues if queue.lag]
    waiting = [queue for queue in behind if not queue.client_id]
    if found.members and waiting:
        yield fault(
            "assignment",
            f"{counted(len(waiting), 'queue')} with messages {'has' if len(waiting) == 1 else 'have'} no member: "
            + _place(waiting[0]),
            "members are still joining, or none of them subscribes to the topic",
            f"reput group members {name}, and again in a minute",
        )
    elif found.members:
        yield ok("assignment", "each queue with messages has a member")
    stuck = [queue for queue in behind if queue.client_id and _is_stuck(queue)]
    if stuck:
        worst = max(stuck, key=lambda queue: queue.lag_age_millis)
        last = worst.last_commit_timestamp
        since = "never" if last < 0 else f"{duration_text(max(0.0, time.time() - last / 1000))} ago"
        yield fault(
            "progress",
            f"{counted(len(stuck), 'queue')} {'is' if len(stuck) == 1 else 'are'} stuck: {_place(worst)}, "
            f"{counted(worst.lag, 'message')}, {worst.in_flight} in flight, last commit {since}",
            f"member {worst.client_id} hangs, or fails at offset {worst.committed_offset} again and again",
            f"read the log of that member; to pass over the message: reput group skip {name} {worst.topic} "
            f"--queue {worst.queue_id} --count 1",
        )
    else:
        age_s = max((queue.lag_age_millis for queue in behind), default=0) / 1000
        behind_s = f", the oldest {duration_text(age_s)} old" if behind else ""
        yield ok(
            "progress", f"{counted(found.summary.lag, 'message')} to consume{behind_s}; no queue is stuck"
        )


def _is_stuck(queue: GroupQueue) -> bool:
    committed_s = time.time() - queue.last_commit_timestamp / 1000
    return queue.lag_age_millis > 1000 * STUCK_S and (
        queue.last_commit_timestamp < 0 or committed_s > STUCK_S
    )


def _place(queue: GroupQueue) -> str:
    return f"{queue.topic}-{queue.queue_id}"
