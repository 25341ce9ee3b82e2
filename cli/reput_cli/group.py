"""`reput group ...`: consumer groups, their members, their progress and their offsets."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

import click
from msgspec.structs import replace

from reput_cli.completion import GROUP, TOPIC
from reput_cli.failures import CommandFailed, not_found_as
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer, ago_text, health_text, write_line
from reput_cli.positions import PositionType
from reput_cli.preview import dry_run_option, may_proceed, show
from reput_client.blocking import Admin
from reput_client.positions import Position
from reput_protocol.commands.group import DEAD_LETTER, SubscriptionGroupConfig
from reput_protocol.commands.group_description import GroupDescription, GroupSummary
from reput_protocol.errors import GroupNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import RETRY_PREFIX, is_system_group
from reput_protocol.printable import counted, printable
from reput_protocol.record.message import MessageQueue

_LATEST_MS = -1


_force_option = click.option(
    "--force", is_flag=True, help="Proceed even if members are online; they jump to the new offsets."
)


@click.group()
def command() -> None:
    """List, describe, create, alter and delete consumer groups; list members; set offsets."""


@command.command(name="list")
@click.option("-a", "--all", "show_all", is_flag=True, help="System groups too.")
@shared_options
def list_groups(settings: Settings, show_all: bool) -> int:
    """List the groups with their state, their number of members and their lag.

    The broker decides the state: ok, behind, stuck, empty (messages wait, and no member runs), conflicting (members
    have different subscriptions). `reput doctor group` says what to do.
    """
    with settings.admin() as admin:
        groups = [one for one in admin.list_groups() if show_all or not is_system_group(one.group)]
    printer = Printer(settings)
    if printer.is_table:
        columns = ["group", "state", "since", "members", "topics", "lag", "lag_age"]
    else:
        columns = ["group", "state", "members", "topics", "lag", "lag_age_s", "since_ms", "member", "queue", "reason"]
    printer.rows(columns, [_listed(printer, group) for group in groups])
    if printer.is_table:
        for group in groups:
            if group.health.reason:  # that of one that is ok says, for example, that it is disabled
                printer.note(f"{group.group} is {health_text(group.health)}")
    return ExitCode.DONE


def _listed(printer: Printer, group: GroupSummary) -> tuple[object, ...]:
    health = group.health
    topics = group.topics if printer.is_json else len(group.topics)
    lag_age = _lag_age(printer, group.lag, group.lag_age_millis)
    if printer.is_table:
        since = _ago(health.since_millis)
        return group.group, str(health.state), since, group.members, topics, group.lag, lag_age
    since_ms, queue = (_known(health.since_millis), f"{health.topic}-{health.queue_id}" if health.topic else None)
    where = health.client_id or None, queue, health.reason or None
    return group.group, str(health.state), group.members, topics, group.lag, lag_age, since_ms, *where


@command.command()
@click.argument("group", type=GROUP)
@click.option("--topic", type=TOPIC, help="Only this topic.")
@shared_options
def describe(settings: Settings, group: str, topic: str | None) -> int:
    """Show the progress of GROUP in each queue, and the member that has the queue.

    Messages in flight, which online members have pulled and not committed, members and commit times are known only
    since the broker's start.
    """
    with settings.admin() as admin:
        found = admin.describe_group(group, topic)
    printer = Printer(settings)
    printer.note(_headline(found))
    for problem in found.problems:
        printer.note(health_text(problem))
    human = printer.is_table
    age, last = ("lag_age", "last_commit") if human else ("lag_age_s", "last_commit_ms")
    columns = ["queue", "start", "end", "committed", "lag", age, "inflight", last]
    rows = [
        (
            queue.topic,
            queue.client_id or None,
            queue.queue_id,
            queue.start_offset,
            queue.end_offset,
            _known(queue.committed_offset),
            queue.lag,
            _lag_age(printer, queue.lag, queue.lag_age_millis),
            queue.in_flight,
            _ago(queue.last_commit_timestamp) if human else _known(queue.last_commit_timestamp),
            queue.broker_name,
        )
        for queue in found.queues
    ]
    if not human:
        named = [(row[-1], (row[0], *row[2:-2], row[1], row[-2])) for row in rows]
        printer.rows_by_broker(["topic", *columns[:-1], "member", last], named)
        return ExitCode.DONE
    # With topic and member as columns, the table would not fit a terminal.
    rows.sort(key=lambda row: (row[0].startswith(RETRY_PREFIX), row[0], row[1] or "", row[-1], row[2]))
    has_several = len({row[-1] for row in rows}) > 1
    for (name, member, broker), of_member in groupby(rows, key=itemgetter(0, 1, -1)):
        holder = "no member" if member is None else f"member {member}"
        place = f", broker {broker}" if has_several else ""
        write_line(printable(f"topic {name}{place}, {holder}"))
        printer.rows(columns, [row[2:-1] for row in of_member])
    return ExitCode.DONE


@command.command()
@click.argument("group", type=GROUP)
@shared_options
def members(settings: Settings, group: str) -> int:
    """List the members of GROUP that are online, with their number of queues."""
    with settings.admin() as admin:
        found = admin.describe_group(group)
    printer = Printer(settings)
    printer.note(_headline(found))
    for subscription in found.subscriptions:
        printer.note(
            f"subscribes to {subscription.topic} with {subscription.sub_string!r} ({subscription.expression_type})"
        )
    idle = "idle" if printer.is_table else "idle_s"
    printer.rows(
        ["client_id", "address", "language", "version", "queues", "locks", idle],
        [
            (
                member.client_id,
                member.client_addr,
                member.language,
                member.version,
                member.queues,
                member.locks,
                printer.duration(member.silent_millis),
            )
            for member in found.members
        ],
    )
    return ExitCode.DONE


@command.command()
@click.argument("group", type=GROUP)
@click.option("--retry-max", type=click.IntRange(min=0), help="Retries before a message becomes a dead letter.")
@click.option("--orderly", is_flag=True, help="Members that consume by POP, gRPC clients too, get each queue in order.")
@dry_run_option
@shared_options
def create(settings: Settings, group: str, retry_max: int | None, orderly: bool, dry_run: bool) -> int:
    """Create GROUP unless it exists. Needed only if the broker does not create groups itself."""
    config = SubscriptionGroupConfig(group, consume_message_orderly=orderly)
    config = config if retry_max is None else replace(config, retry_max_times=retry_max)
    with settings.admin() as admin:
        preview = admin.preview_create_group(config)
        if dry_run or not preview.is_change:
            show(settings, preview)
            return ExitCode.DONE
        admin.put_group(config)
    Printer(settings).note(f"group {group} created")
    return ExitCode.DONE


@command.command()
@click.argument("group", type=GROUP)
@click.option("--retry-max", type=click.IntRange(min=0), help="Retries before a message becomes a dead letter.")
@click.option("--enable/--disable", "consume", default=None, help="Whether the group may consume.")
@click.option("--broadcast/--no-broadcast", default=None, help="Whether the group may consume by broadcasting.")
@click.option(
    "--orderly/--not-orderly",
    default=None,
    help="Whether members that consume by POP, gRPC clients too, get each queue in order.",
)
@click.option(
    "--expired", type=click.Choice(["drop", DEAD_LETTER]), help="What happens to messages whose time to live is over."
)
@dry_run_option
@shared_options
def alter(
    settings: Settings,
    group: str,
    retry_max: int | None,
    consume: bool | None,
    broadcast: bool | None,
    orderly: bool | None,
    expired: str | None,
    dry_run: bool,
) -> int:
    """Change the settings of GROUP. They apply immediately, also to members that are online."""
    if all(given is None for given in (retry_max, consume, broadcast, orderly, expired)):
        raise CommandFailed("nothing to change", remedy="--disable, or --retry-max N", code=ExitCode.USAGE)
    with settings.admin() as admin:
        preview, changed = admin.changed_group(
            group, retry_max=retry_max, consume=consume, broadcast=broadcast, orderly=orderly, expired=expired
        )
        if dry_run:
            show(settings, preview)
            return ExitCode.DONE
        if preview.is_change:
            admin.put_group(changed)
    Printer(settings).note(
        f"group {group}: {'enabled' if changed.consume_enable else 'disabled'}, "
        f"at most {counted(changed.retry_max_times, 'retry', 'retries')}, "
        f"broadcasting {'allowed' if changed.consume_broadcast_enable else 'not allowed'}"
    )
    return ExitCode.DONE


@command.command()
@click.argument("group", type=GROUP)
@click.option("--keep-offsets", is_flag=True, help="Keep the committed offsets.")
@dry_run_option
@click.option(
    "--force", is_flag=True, help="Delete it even if members are online. With automatic creation they create it again."
)
@shared_options
def delete(settings: Settings, group: str, keep_offsets: bool, dry_run: bool, force: bool) -> int:
    """Delete GROUP, its committed offsets and its retry topic. Asks for the name unless --yes is given.

    Its dead letters stay, in the topic %DLQ%GROUP.
    """
    with settings.admin() as admin:
        missing = f"group {group} does not exist; nothing was deleted"
        with not_found_as(GroupNotFound, missing, remedy="reput group list"):
            preview = admin.preview_delete_group(group, clean_offsets=not keep_offsets)
        ask = "type its name to delete it"
        failed = f"group {group} was not deleted"
        if not may_proceed(settings, preview, failed, dry_run=dry_run, force=force, name=group, question=ask):
            return ExitCode.DONE
        admin.delete_group_whole(group, clean_offsets=not keep_offsets)
    Printer(settings).note(f"group {group} deleted")
    return ExitCode.DONE


@command.command()
@click.argument("group", type=GROUP)
@click.argument("topic", type=TOPIC)
@click.option(
    "--to",
    "position",
    type=PositionType(),
    metavar="POSITION",
    help="earliest, latest, an offset, -N (the last N of each queue), @TIME or @-15m.",
)
@click.option("--shift", type=int, metavar="N", help="N messages forward, or back if N is negative.")
@click.option("--message", metavar="ID", help="To the message with this offset message id, in its queue.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only this queue.")
@_force_option
@dry_run_option
@shared_options
def reset(
    settings: Settings,
    group: str,
    topic: str,
    position: Position | None,
    shift: int | None,
    message: str | None,
    queue_id: int | None,
    dry_run: bool,
    force: bool,
) -> int:
    """Set the offsets of GROUP in TOPIC, forward or back. Asks for the group's name unless --yes is given.

    Write negative numbers as --to=-10 and --shift=-10.
    """
    if [position, shift, message].count(None) != 2:
        raise CommandFailed(
            "the new position is missing or given twice",
            remedy="one of --to POSITION, --shift N and --message ID",
            code=ExitCode.USAGE,
        )
    where = {"shift": shift, "message": message} if position is None else position.of_reset()
    with settings.admin() as admin:
        plan = admin.plan_reset(group, topic, queue_id=queue_id, **where)
        return _apply(settings, admin, group, plan, "reset", dry_run=dry_run, force=force)


@command.command()
@click.argument("group", type=GROUP)
@click.argument("topic", type=TOPIC)
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only this queue.")
@click.option(
    "--count", type=click.IntRange(min=1), help="Skip this many messages of --queue.  [default: all up to the end]"
)
@_force_option
@dry_run_option
@shared_options
def skip(
    settings: Settings, group: str, topic: str, queue_id: int | None, count: int | None, dry_run: bool, force: bool
) -> int:
    """Skip messages of TOPIC that GROUP has not consumed: all of them, or the next --count of a queue.

    They stay in the topic for other groups. Asks for the group's name unless --yes is given.
    """
    with settings.admin() as admin:
        if count is None:
            plan = admin.plan_reset(group, topic, when=_LATEST_MS, queue_id=queue_id)
        else:
            plan = admin.plan_reset(group, topic, shift=count, queue_id=queue_id)
            if len(plan) > 1:
                raise CommandFailed(
                    f"{topic} has {len(plan)} queues, and --count would skip messages of each of them",
                    remedy=f"--queue N, the one that is stuck: reput group describe {group}",
                    code=ExitCode.USAGE,
                )
        return _apply(settings, admin, group, plan, "skip", dry_run=dry_run, force=force)


@command.command()
@click.argument("source", type=GROUP)
@click.argument("target", type=GROUP)
@click.option("--topic", type=TOPIC, help="Only this topic.")
@_force_option
@dry_run_option
@shared_options
def clone(settings: Settings, source: str, target: str, topic: str | None, dry_run: bool, force: bool) -> int:
    """Copy the offsets of group SOURCE to group TARGET. Asks for the target's name unless --yes is given."""
    with settings.admin() as admin:
        plan = admin.clone_offsets(source, target, topic, dry_run=True)
        if not _confirmed(settings, admin, target, plan, "clone", dry_run=dry_run, force=force):
            return ExitCode.DONE
        done = admin.clone_offsets(source, target, topic)
    Printer(settings).note(f"group {target} continues where {source} was, in {counted(len(done), 'queue')}")
    return ExitCode.DONE


def _apply(
    settings: Settings,
    admin: Admin,
    group: str,
    plan: dict[MessageQueue, int],
    verb: str,
    *,
    dry_run: bool,
    force: bool,
) -> int:
    """Show a plan, ask, and set exactly the offsets shown."""
    if _confirmed(settings, admin, group, plan, verb, dry_run=dry_run, force=force):
        admin.set_offsets(group, plan)
        Printer(settings).note(f"group {group} continues there, in {counted(len(plan), 'queue')}")
    return ExitCode.DONE


def _confirmed(
    settings: Settings,
    admin: Admin,
    group: str,
    plan: dict[MessageQueue, int],
    verb: str,
    *,
    dry_run: bool,
    force: bool,
) -> bool:
    """Show the plan and return whether to apply it; refused while members are online, unless `force` is set."""
    return may_proceed(
        settings,
        admin.preview_set_offsets(group, plan),
        f"group {group} was not changed",
        dry_run=dry_run,
        force=force,
        name=group,
        question=f"type the group's name to {verb} it",
    )


def _headline(found: GroupDescription) -> str:
    summary = found.summary
    how = f", {found.message_model.value.lower()}" if found.members else ""
    online = counted(summary.members, "member") + " online" + how
    well = summary.health.reason
    note = f" ({well})" if well and not found.problems else ""
    return f"group {summary.group}: {summary.health.state}{note}, {online}, lag {summary.lag}"


def _lag_age(printer: Printer, lag: int, millis: int) -> str | float | None:
    """Return the age of the lag; None until the broker has measured it."""
    return None if lag and not millis else printer.duration(millis)


def _ago(timestamp_ms: int) -> str | None:
    return None if timestamp_ms < 0 else ago_text(timestamp_ms)


def _known(value: int) -> int | None:
    return None if value < 0 else value
