"""`reput topic ...`: topics."""

from __future__ import annotations

import click

from reput_cli.completion import TOPIC
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_client.blocking import Admin
from reput_client.errors import BrokersFailed
from reput_protocol.commands.topic import TopicConfig
from reput_protocol.errors import PermissionDenied, ReputError, TopicNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import is_system_topic
from reput_protocol.printable import counted

_PERMISSIONS = {"rw": 6, "r": 4, "w": 2, "none": 0}
_PERMISSION_NAMES = {number & 6: name for name, number in _PERMISSIONS.items()}


_type_option = click.option(
    "--type",
    "message_type",
    type=click.Choice(["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"], case_sensitive=False),
    help="What messages it is for: pops of PRIORITY begin with the highest priority; gRPC proxies check all of them.",
)


@click.group()
def command() -> None:
    """List, describe, create, alter and delete topics."""


@command.command(name="list")
@click.option("-a", "--all", "show_all", is_flag=True, help="System topics too.")
@shared_options
def list_topics(settings: Settings, show_all: bool) -> int:
    """List the topics with their numbers of queues."""
    with settings.admin() as admin:
        own_names = admin.cluster_info().own_names
        names = sorted(
            name for name in admin.list_topics() if show_all or not is_system_topic(name, own_names)
        )
        configs: list[tuple[str, TopicConfig]] = []
        hidden = 0
        for name in names:
            try:
                configs += admin.topic_configs(name).items()
            except (PermissionDenied, BrokersFailed) as error:
                if not _is_denied(error):
                    raise
                hidden += 1
    printer = Printer(settings)
    if hidden:
        printer.note(f"left out: {counted(hidden, 'topic')}, on which the user lacks the right 'describe'")
    printer.rows_by_broker(
        ["topic", "read_queues", "write_queues", "permission"],
        [
            (broker, (c.topic_name, c.read_queue_nums, c.write_queue_nums, _PERMISSION_NAMES[c.perm & 6]))
            for broker, c in configs
        ],
    )
    return ExitCode.DONE


def _is_denied(error: ReputError) -> bool:
    """Whether the user lacks a right at every broker that failed."""
    failures = error.failures.values() if isinstance(error, BrokersFailed) else (error,)
    return all(isinstance(failure, PermissionDenied) for failure in failures)


@command.command()
@click.argument("topic", type=TOPIC)
@shared_options
def describe(settings: Settings, topic: str) -> int:
    """Show the first and the next offset of each queue of TOPIC."""
    with settings.admin() as admin:
        table = admin.topic_stats(topic).offset_table
    rows = [
        (
            queue.broker_name,
            (topic, queue.queue_id, one.min_offset, one.max_offset, one.max_offset - one.min_offset),
        )
        for queue, one in sorted(table.items())
    ]
    Printer(settings).rows_by_broker(["topic", "queue", "start", "end", "messages"], rows)
    return ExitCode.DONE


@command.command()
@click.argument("topic", type=TOPIC)
@click.option("--queues", type=click.IntRange(1, 65_535), default=4, show_default=True)
@click.option("--permission", type=click.Choice(list(_PERMISSIONS)), default="rw", show_default=True)
@_type_option
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="NAME",
    help="Only on this broker; repeatable.  [default: all]",
)
@shared_options
def create(
    settings: Settings,
    topic: str,
    queues: int,
    permission: str,
    message_type: str | None,
    brokers: tuple[str, ...],
) -> int:
    """Create TOPIC on every broker of the cluster; does nothing where it exists with these settings."""
    with settings.admin() as admin:
        _refuse_system(admin, topic)
        wanted = set(brokers or admin.cluster_info().masters)
        try:
            there = {name: c for name, c in admin.topic_configs(topic).items() if name in wanted}
        except TopicNotFound:
            there = {}
        other = [
            (name, config)
            for name, config in there.items()
            if (config.read_queue_nums, config.perm & 6) != (queues, _PERMISSIONS[permission])
            or message_type not in (None, config.message_type)
        ]
        if not other:
            missing = sorted(wanted - set(there))
            if missing:
                perm = _PERMISSIONS[permission]
                admin.create_topic(
                    topic, queues=queues, perm=perm, message_type=message_type, brokers=missing
                )
            each = f" on each of {', '.join(missing)}" if len(missing) > 1 else ""
            Printer(settings).note(
                f"topic {topic} created with {counted(queues, 'queue')}{each}"
                if missing
                else f"topic {topic} already exists with these settings"
            )
            return ExitCode.DONE
    name, existing = other[0]
    raise CommandFailed(
        f"topic {topic} exists with other settings" + (f" on broker {name}" if len(wanted) > 1 else ""),
        reason=f"{counted(existing.read_queue_nums, 'queue')}, permission {_PERMISSION_NAMES[existing.perm & 6]}, "
        f"type {existing.message_type or 'not set'}",
        remedy=f"reput topic alter {topic} --queues {queues} --permission {permission}"
        + ("" if message_type is None else f" --type {message_type}"),
    )


@command.command()
@click.argument("topic", type=TOPIC)
@click.option("--queues", type=click.IntRange(1, 65_535), help="New number of queues.")
@click.option("--permission", type=click.Choice(list(_PERMISSIONS)), help="New permission.")
@_type_option
@shared_options
def alter(
    settings: Settings, topic: str, queues: int | None, permission: str | None, message_type: str | None
) -> int:
    """Change the number of queues, the permission or the type of TOPIC; its messages stay."""
    if queues is None and permission is None and message_type is None:
        raise CommandFailed(
            "nothing to change", remedy="--queues N, --permission rw or --type NORMAL", code=ExitCode.USAGE
        )
    with settings.admin() as admin:
        _refuse_system(admin, topic)
        config = admin.topic_config(topic)
        perm = config.perm if permission is None else _PERMISSIONS[permission]
        queues = config.read_queue_nums if queues is None else queues
        if queues < config.read_queue_nums and not settings.yes:
            click.confirm(
                f"queues {queues} to {config.read_queue_nums - 1} of {topic} can then no longer be read. Continue?",
                abort=True,
                err=True,
            )
        admin.create_topic(topic, queues=queues, perm=perm, message_type=message_type)
    Printer(settings).note(
        f"topic {topic} has {counted(queues, 'queue')}, permission {_PERMISSION_NAMES[perm & 6]}"
    )
    return ExitCode.DONE


@command.command()
@click.argument("topic", type=TOPIC)
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@shared_options
def delete(settings: Settings, topic: str, dry_run: bool) -> int:
    """Delete TOPIC with its queues and its groups' offsets. Asks for the name unless --yes is given."""
    printer = Printer(settings)
    with settings.admin() as admin:
        _refuse_system(admin, topic)
        try:
            table = admin.topic_stats(topic).offset_table
        except TopicNotFound as error:
            raise CommandFailed(
                f"topic {topic} does not exist; nothing was deleted",
                remedy="reput topic list",
                code=ExitCode.NOT_FOUND,
            ) from error
        messages = sum(queue.max_offset - queue.min_offset for queue in table.values())
        printer.note(f"topic {topic}: {counted(len(table), 'queue')} with {counted(messages, 'message')}")
        if dry_run:
            return ExitCode.DONE
        if not settings.yes and click.prompt("type its name to delete it", err=True) != topic:
            raise CommandFailed(f"topic {topic} was not deleted", reason="the name was not typed")
        admin.delete_topic(topic)
    printer.note(f"topic {topic} deleted")
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
        (
            topic,
            queue.broker_name,
            addresses[queue.broker_name].get(0),
            queue.read_queue_nums,
            queue.write_queue_nums,
        )
        for queue in found.queue_datas
    ]
    Printer(settings).rows(["topic", "broker", "address", "read_queues", "write_queues"], rows)
    return ExitCode.DONE


def _refuse_system(admin: Admin, topic: str) -> None:
    """Refuse to create or change a system topic."""
    if is_system_topic(topic, admin.cluster_info().own_names):
        raise CommandFailed(
            f"topic {topic} belongs to the broker",
            reason="the broker creates it with the settings that it needs",
            remedy="use a topic of another name: reput topic list",
        )
