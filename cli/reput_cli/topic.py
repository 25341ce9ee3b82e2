"""`reput topic ...`: topics."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from typing import Any, Final

import click

from reput_cli.completion import TOPIC
from reput_cli.failures import CommandFailed, not_found_as
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_cli.preview import dry_run_option, may_proceed, refuse, show
from reput_client.blocking import Admin
from reput_client.errors import BrokersFailed
from reput_protocol.commands.topic import MESSAGE_TYPES, PERMISSION_NAMES, PERMISSIONS, QUEUES_MAX, TopicSummary
from reput_protocol.errors import PermissionDenied, ReputError, RequestNotSupported, TopicNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from reput_protocol.printable import counted
from reput_protocol.quantities import size_text

_type_option = click.option(
    "--type",
    "message_type",
    type=click.Choice(MESSAGE_TYPES, case_sensitive=False),
    help="Type of its messages: pops of PRIORITY begin with the highest priority; gRPC proxies check all of them.",
)


@click.group()
def command() -> None:
    """List, describe, create, alter and delete topics."""


_SORTS: Final[dict[str, Callable[[TopicSummary], tuple[Any, ...]]]] = {
    "name": lambda one: (one.topic,),
    "messages": lambda one: (-one.messages, one.topic),
    "size": lambda one: (-one.size_bytes, one.topic),
    "in": lambda one: (-one.put_tps, one.topic),
    "out": lambda one: (-one.get_tps, one.topic),
}


@command.command(name="list")
@click.argument("pattern", required=False)
@click.option("-a", "--all", "show_all", is_flag=True, help="System, retry and dead-letter topics too.")
@click.option(
    "--sort",
    type=click.Choice(list(_SORTS)),
    default="name",
    show_default=True,
    help="Descending order, names ascending.",
)
@shared_options
def list_topics(settings: Settings, pattern: str | None, show_all: bool, sort: str) -> int:
    """List the topics with their queues, messages, rates and size.

    With PATTERN, such as 'order*', those that match; without * or ?, those whose name contains it.
    Messages are those that are still kept. The rates are messages per second of the last minute, in and out of the
    broker. The size is estimated from the last messages of each queue.
    """
    with settings.admin() as admin:
        found, hidden = _summaries(admin)
    printer = Printer(settings)
    if hidden:
        printer.note(f"left out: {counted(hidden, 'topic')}, on which the user lacks the right 'describe'")
    shown = [
        (broker, one) for broker, one in found if (show_all or one.kind == "normal") and _matches(one.topic, pattern)
    ]
    shown.sort(key=lambda each: (_SORTS[sort](each[1]), each[0]))
    printer.rows_by_broker(
        (
            ["topic", "queues", "permission", "messages", "in/s", "out/s", "size"]
            if printer.is_table
            else [
                "topic", "read_queues", "write_queues", "permission", "messages",
                "messages_in_per_s", "messages_out_per_s", "size_bytes",
            ]
        ),
        [(broker, _row(printer, one)) for broker, one in shown],
    )  # fmt: skip
    return ExitCode.DONE


def _matches(topic: str, pattern: str | None) -> bool:
    if pattern is None:
        return True
    return fnmatchcase(topic, pattern) if set(pattern) & set("*?[") else pattern in topic


def _row(printer: Printer, one: TopicSummary) -> tuple[object, ...]:
    permission = PERMISSION_NAMES[one.perm & 6]
    rates = (round(one.put_tps, 1), round(one.get_tps, 1))
    if not printer.is_table:
        return (one.topic, one.read_queue_nums, one.write_queue_nums, permission, one.messages, *rates, one.size_bytes)
    queues = str(one.read_queue_nums)
    if one.write_queue_nums != one.read_queue_nums:
        queues += f", {one.write_queue_nums} for writing"
    return (one.topic, queues, permission, f"{one.messages:,}", *map(str, rates), size_text(one.size_bytes))


def _summaries(admin: Admin) -> tuple[list[tuple[str, TopicSummary]], int]:
    """Return the topics of every broker, and how many the user may not see."""
    found: list[tuple[str, TopicSummary]] = []
    hidden: set[str] = set()
    for broker in sorted(admin.cluster_info().masters):
        try:
            found += [(broker, one) for one in admin.topic_summaries(broker_name=broker, permitted=True)]
            continue
        except RequestNotSupported:
            read = _of_rocketmqs_broker
        except PermissionDenied:
            read = _single  # which may be permitted
        for name in admin.list_topics():
            try:
                one = read(admin, broker, name)
            except TopicNotFound:
                continue
            except (PermissionDenied, BrokersFailed) as error:
                if not _is_denied(error):
                    raise
                hidden.add(name)
            else:
                found += [] if one is None else [(broker, one)]
    if "REPUT_USER" in os.environ:
        own_names = admin.cluster_info().own_names
        hidden |= {name for name in admin.list_topics() if not _is_internal(name, own_names)}
    return found, len(hidden - {one.topic for _, one in found})


def _is_internal(name: str, own_names: Collection[str]) -> bool:
    return is_system_topic(name, own_names) or name.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _is_denied(error: ReputError) -> bool:
    """Whether the user lacks a right at every broker that failed."""
    failures = error.failures.values() if isinstance(error, BrokersFailed) else (error,)
    return all(isinstance(failure, PermissionDenied) for failure in failures)


def _single(admin: Admin, broker: str, name: str) -> TopicSummary | None:
    (one,) = admin.topic_summaries(name, broker_name=broker)
    return one


def _of_rocketmqs_broker(admin: Admin, broker: str, name: str) -> TopicSummary | None:
    """Return the settings of a topic and its number of messages, all that such a broker tells; None if it has none."""
    config = admin.topic_configs(name).get(broker)
    if config is None:
        return None
    stats = admin.topic_stats(name).offset_table.items()
    return TopicSummary(
        name,
        "system" if _is_internal(name, admin.cluster_info().own_names) else "normal",
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        messages=sum(each.max_offset - each.min_offset for queue, each in stats if queue.broker_name == broker),
    )


@command.command()
@click.argument("topic", type=TOPIC)
@shared_options
def describe(settings: Settings, topic: str) -> int:
    """Show the first and the next offset of each queue of TOPIC."""
    with settings.admin() as admin:
        table = admin.topic_stats(topic).offset_table
    rows = [
        (queue.broker_name, (topic, queue.queue_id, one.min_offset, one.max_offset, one.max_offset - one.min_offset))
        for queue, one in sorted(table.items())
    ]
    Printer(settings).rows_by_broker(["topic", "queue", "start", "end", "messages"], rows)
    return ExitCode.DONE


@command.command()
@click.argument("topic", type=TOPIC)
@click.option("--queues", type=click.IntRange(1, QUEUES_MAX), default=4, show_default=True)
@click.option("--permission", type=click.Choice(list(PERMISSIONS)), default="rw", show_default=True)
@_type_option
@click.option(
    "--broker", "brokers", multiple=True, metavar="NAME", help="Only on this broker; repeatable.  [default: all]"
)
@dry_run_option
@shared_options
def create(
    settings: Settings,
    topic: str,
    queues: int,
    permission: str,
    message_type: str | None,
    brokers: tuple[str, ...],
    dry_run: bool,
) -> int:
    """Create TOPIC on every broker of the cluster; does nothing if it exists with these settings."""
    wanted: dict[str, Any] = {"queues": queues, "perm": PERMISSIONS[permission], "message_type": message_type}
    with settings.admin() as admin:
        preview = admin.preview_create_topic(topic, brokers=brokers or None, **wanted)
        refuse(preview)
        if dry_run or not preview.is_change:
            show(settings, preview)
            return ExitCode.DONE
        created = admin.create_topic_where_missing(topic, brokers=brokers or None, **wanted)
    each = f" on each of {', '.join(created)}" if len(created) > 1 else ""
    Printer(settings).note(f"topic {topic} created with {counted(queues, 'queue')}{each}")
    return ExitCode.DONE


@command.command()
@click.argument("topic", type=TOPIC)
@click.option("--queues", type=click.IntRange(1, QUEUES_MAX), help="New number of queues.")
@click.option("--permission", type=click.Choice(list(PERMISSIONS)), help="New permission.")
@_type_option
@dry_run_option
@shared_options
def alter(
    settings: Settings, topic: str, queues: int | None, permission: str | None, message_type: str | None, dry_run: bool
) -> int:
    """Change the number of queues, the permission or the type of TOPIC; its messages stay."""
    if queues is None and permission is None and message_type is None:
        raise CommandFailed(
            "nothing to change", remedy="--queues N, --permission rw or --type NORMAL", code=ExitCode.USAGE
        )
    perm = None if permission is None else PERMISSIONS[permission]
    changes: dict[str, Any] = {"queues": queues, "perm": perm, "message_type": message_type}
    with settings.admin() as admin:
        preview = admin.preview_change_topic(topic, **changes)
        refuse(preview)
        if dry_run:
            show(settings, preview)
            return ExitCode.DONE
        if preview.loses is not None and not settings.yes:
            click.confirm(f"{preview.loses}. Continue?", abort=True, err=True)
        config = admin.change_topic(topic, **changes)
    Printer(settings).note(
        f"topic {topic} has {counted(config.read_queue_nums, 'queue')}, permission {PERMISSION_NAMES[config.perm & 6]}"
    )
    return ExitCode.DONE


@command.command()
@click.argument("topic", type=TOPIC)
@dry_run_option
@shared_options
def delete(settings: Settings, topic: str, dry_run: bool) -> int:
    """Delete TOPIC with its queues and its groups' offsets. Asks for the name unless --yes is given."""
    with settings.admin() as admin:
        missing = f"topic {topic} does not exist; nothing was deleted"
        with not_found_as(TopicNotFound, missing, remedy="reput topic list"):
            preview = admin.preview_delete_topic(topic)
        ask = "type its name to delete it"
        failed = f"topic {topic} was not deleted"
        if not may_proceed(settings, preview, failed, dry_run=dry_run, name=topic, question=ask):
            return ExitCode.DONE
        admin.delete_topic(topic)
    Printer(settings).note(f"topic {topic} deleted")
    return ExitCode.DONE


@command.command()
@click.argument("topic", type=TOPIC)
@shared_options
def route(settings: Settings, topic: str) -> int:
    """Show the brokers that serve TOPIC, and their addresses."""
    with settings.admin() as admin:
        found = admin.route(topic)
    addresses = {broker.broker_name: broker.broker_addrs for broker in found.broker_datas}
    rows = [
        (topic, queue.broker_name, addresses[queue.broker_name].get(0), queue.read_queue_nums, queue.write_queue_nums)
        for queue in found.queue_datas
    ]
    Printer(settings).rows(["topic", "broker", "address", "read_queues", "write_queues"], rows)
    return ExitCode.DONE
