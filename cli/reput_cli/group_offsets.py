"""`reput group reset | skip | clone`: set the offsets of a group, after showing the old and new ones."""

from __future__ import annotations

from typing import Any

import click

from reput_cli.completion import GROUP, TOPIC
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_cli.preview import may_proceed
from reput_client.blocking import Admin
from reput_client.positions import Position
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted
from reput_protocol.record.message import MessageQueue

_LATEST_MS = -1


class PositionType(click.ParamType[Position]):
    """A position in a queue, written as for `reput consume -o`."""

    name = "position"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        """Return the position; other text is refused with the valid forms."""
        if isinstance(value, Position):
            return value
        position = Position.parse(str(value))
        if position is None:
            raise click.BadParameter(
                f"{str(value)!r} is not a position: write earliest, latest, an offset, -N for the last N of each "
                "queue, @2026-01-02T03:04:05Z or @-15m",
                ctx,
                param,
            )
        return position


def _shown_first(command: Any) -> Any:
    """Add the options of the commands that set offsets."""
    command = click.option("--dry-run", is_flag=True, help="Only show what would be set.")(command)
    return click.option(
        "--force", is_flag=True, help="Proceed even if members are online; they jump to the new offsets."
    )(command)


@click.command()
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
@_shown_first
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


@click.command()
@click.argument("group", type=GROUP)
@click.argument("topic", type=TOPIC)
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only this queue.")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    help="Skip this many messages of --queue.  [default: all up to the end]",
)
@_shown_first
@shared_options
def skip(
    settings: Settings,
    group: str,
    topic: str,
    queue_id: int | None,
    count: int | None,
    dry_run: bool,
    force: bool,
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


@click.command()
@click.argument("source", type=GROUP)
@click.argument("target", type=GROUP)
@click.option("--topic", type=TOPIC, help="Only this topic.")
@_shown_first
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
