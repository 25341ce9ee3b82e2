"""`reput schedule ...`: messages that the broker sends at times."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime

import click

from reput_cli.completion import TOPIC
from reput_cli.failures import not_found_as
from reput_cli.options import DURATION, Settings, properties_of, sent_message_options, shared_options
from reput_cli.output import Printer, rfc3339
from reput_client.blocking import Message
from reput_protocol.commands.schedule import CATCH_UP_S, MissedTimes
from reput_protocol.errors import NotFound
from reput_protocol.exit_codes import ExitCode

_COLUMNS = ("name", "when", "time_zone", "topic", "state", "next", "last", "last_message_id")


@click.group()
def command() -> None:
    """Create, list, pause, run and delete schedules, whose messages the broker sends at times."""


@command.command()
@click.argument("name")
@click.argument("when", metavar="CRON")
@click.argument("topic", type=TOPIC)
@click.argument("body", default="")
@sent_message_options
@click.option("--ordering-key", help="All messages go to the queue of this key.")
@click.option("--priority", type=click.IntRange(0), help="Popped before lower ones in a topic of the type PRIORITY.")
@click.option("--time-zone", default="UTC", show_default=True, help="Of CRON, such as Europe/Berlin.")
@click.option(
    "--catch-up",
    type=DURATION,
    default=f"{CATCH_UP_S / 3600:.0f}h",
    show_default=True,
    help="Make up for times missed at most this long ago.",
)
@click.option(
    "--missed",
    type=click.Choice([which.value for which in MissedTimes]),
    default=MissedTimes.LATEST.value,
    show_default=True,
    help="Of several missed times: send for the latest, or for all, at most 1000.",
)
@click.option("--replace", is_flag=True, help="Replace the schedule of this name.")
@shared_options
def create(
    settings: Settings,
    name: str,
    when: str,
    topic: str,
    body: str,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    ordering_key: str | None,
    priority: int | None,
    time_zone: str,
    catch_up: float,
    missed: str,
    replace: bool,
) -> int:
    """Have the broker send BODY to TOPIC at the times of CRON, once for each.

    CRON has five fields: minute, hour, day of month, month, day of week; or is a nickname such as @hourly, or an
    interval: '@every 90s'.
    """
    message = Message(
        topic,
        body.encode("utf-8", "surrogateescape"),
        tag=tag,
        keys=keys,
        properties=properties_of(properties),
        priority=priority,
    )
    with settings.admin() as admin:
        admin.create_schedule(
            name,
            when,
            message,
            ordering_key=ordering_key,
            time_zone=time_zone,
            catch_up_s=catch_up,
            missed=missed,
            replace=replace,
        )
        created = admin.describe_schedule(name)
    Printer(settings).note(f"schedule {name} sends to {topic} next at {_time(created.next_time)}")
    return ExitCode.DONE


@command.command(name="list")
@click.option("-t", "--topic", type=TOPIC, help="Only those that send to this topic.")
@shared_options
def list_schedules(settings: Settings, topic: str | None) -> int:
    """List the schedules with their next and their last time."""
    with settings.admin() as admin:
        found = admin.list_schedules(topic)
    Printer(settings).rows_by_broker(
        _COLUMNS,
        [
            (
                one.broker_name,
                (
                    one.definition.name,
                    one.definition.when,
                    one.definition.time_zone,
                    one.definition.topic,
                    str(one.state),
                    _time(one.next_time),
                    _time(one.last_time),
                    one.last_message_id,
                ),
            )
            for one in found
        ],
    )
    return ExitCode.DONE


@command.command()
@click.argument("name")
@shared_options
def describe(settings: Settings, name: str) -> int:
    """Show a schedule, its message, and how far it is."""
    with settings.admin() as admin, _must_exist(name):
        found = admin.describe_schedule(name)
    printer, definition = Printer(settings), found.definition
    printer.fields(
        {
            "name": name,
            "broker": found.broker_name,
            "state": str(found.state),
            "since": _time(found.since_time),
            "reason": found.reason or None,
            "when": definition.when,
            "time_zone": definition.time_zone,
            "next": _time(found.next_time),
            "last": _time(found.last_time),
            "last_message_id": found.last_message_id,
            "topic": definition.topic,
            "body": definition.message_body.decode("utf-8", "backslashreplace"),
            "tag": definition.tag,
            "keys": definition.keys if printer.is_json else " ".join(definition.keys) or None,
            "properties": definition.properties
            if printer.is_json
            else " ".join(f"{key}={value}" for key, value in definition.properties.items()) or None,
            "ordering_key": definition.ordering_key,
            "priority": definition.priority,
            "catch_up_s": definition.catch_up_s,
            "missed": definition.missed.value,
            "messages_sent": found.sent,
            "times_missed": found.times_missed,
        }
    )
    return ExitCode.DONE


@command.command()
@click.argument("name")
@shared_options
def delete(settings: Settings, name: str) -> int:
    """Delete a schedule; what it has sent stays."""
    with settings.admin() as admin, _must_exist(name):
        admin.delete_schedule(name)
    Printer(settings).note(f"schedule {name} deleted")
    return ExitCode.DONE


@command.command()
@click.argument("name")
@shared_options
def pause(settings: Settings, name: str) -> int:
    """Pause a schedule until it is resumed."""
    with settings.admin() as admin, _must_exist(name):
        admin.pause_schedule(name)
    Printer(settings).note(f"schedule {name} paused")
    return ExitCode.DONE


@command.command()
@click.argument("name")
@shared_options
def resume(settings: Settings, name: str) -> int:
    """Resume a paused schedule from its next time on."""
    with settings.admin() as admin, _must_exist(name):
        admin.resume_schedule(name)
        resumed = admin.describe_schedule(name)
    Printer(settings).note(f"schedule {name} sends next at {_time(resumed.next_time)}")
    return ExitCode.DONE


@command.command()
@click.argument("name")
@shared_options
def run(settings: Settings, name: str) -> int:
    """Send the message of a schedule once now; its times stay as they are."""
    with settings.admin() as admin, _must_exist(name):
        message_id = admin.run_schedule(name)
    Printer(settings).rows(("offset_message_id",), [(message_id,)])
    return ExitCode.DONE


def _must_exist(name: str) -> AbstractContextManager[None]:
    missing = f"there is no schedule {name!r}"
    return not_found_as(NotFound, missing, remedy="reput schedule list", says_why=True)


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else rfc3339(round(moment.timestamp() * 1000))
