"""`reput topic ...`: topics."""

from __future__ import annotations

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_client.blocking import Admin
from reput_protocol.errors import TopicNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import is_system_topic
from reput_protocol.printable import counted

_PERMISSIONS = {"rw": 6, "r": 4, "w": 2, "none": 0}
_PERMISSION_NAMES = {number & 6: name for name, number in _PERMISSIONS.items()}


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
        configs = [admin.topic_config(name) for name in names]
    Printer(settings).rows(
        ["topic", "read_queues", "write_queues", "permission"],
        [
            (c.topic_name, c.read_queue_nums, c.write_queue_nums, _PERMISSION_NAMES[c.perm & 6])
            for c in configs
        ],
    )
    return ExitCode.DONE


@command.command()
@click.argument("topic")
@shared_options
def describe(settings: Settings, topic: str) -> int:
    """Show the first and the next offset of each queue of TOPIC."""
    with settings.admin() as admin:
        queues = admin.topic_config(topic).read_queue_nums
        rows = []
        for queue_id in range(queues):
            start, end = admin.min_offset(topic, queue_id), admin.max_offset(topic, queue_id)
            rows.append((topic, queue_id, start, end, end - start))
    Printer(settings).rows(["topic", "queue", "start", "end", "messages"], rows)
    return ExitCode.DONE


@command.command()
@click.argument("topic")
@click.option("--queues", type=click.IntRange(1, 65_535), default=4, show_default=True)
@click.option("--permission", type=click.Choice(list(_PERMISSIONS)), default="rw", show_default=True)
@shared_options
def create(settings: Settings, topic: str, queues: int, permission: str) -> int:
    """Create TOPIC; does nothing if it exists with these settings."""
    with settings.admin() as admin:
        _refuse_system(admin, topic)
        try:
            existing = admin.topic_config(topic)
        except TopicNotFound:
            admin.create_topic(topic, queues=queues, perm=_PERMISSIONS[permission])
            Printer(settings).note(f"topic {topic} created with {counted(queues, 'queue')}")
            return ExitCode.DONE
    if (existing.read_queue_nums, existing.perm & 6) == (queues, _PERMISSIONS[permission]):
        Printer(settings).note(f"topic {topic} already exists with these settings")
        return ExitCode.DONE
    raise CommandFailed(
        f"topic {topic} exists with other settings",
        reason=f"{counted(existing.read_queue_nums, 'queue')}, permission {_PERMISSION_NAMES[existing.perm & 6]}",
        remedy=f"reput topic alter {topic} --queues {queues} --permission {permission}",
    )


@command.command()
@click.argument("topic")
@click.option("--queues", type=click.IntRange(1, 65_535), help="New number of queues.")
@click.option("--permission", type=click.Choice(list(_PERMISSIONS)), help="New permission.")
@shared_options
def alter(settings: Settings, topic: str, queues: int | None, permission: str | None) -> int:
    """Change the number of queues or the permission of TOPIC; its messages stay."""
    if queues is None and permission is None:
        raise CommandFailed("nothing to change", remedy="--queues N or --permission rw", code=ExitCode.USAGE)
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
        admin.create_topic(topic, queues=queues, perm=perm)
    Printer(settings).note(
        f"topic {topic} has {counted(queues, 'queue')}, permission {_PERMISSION_NAMES[perm & 6]}"
    )
    return ExitCode.DONE


@command.command()
@click.argument("topic")
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@shared_options
def delete(settings: Settings, topic: str, dry_run: bool) -> int:
    """Delete TOPIC with its queues and its groups' offsets. Asks for the name unless --yes is given."""
    printer = Printer(settings)
    with settings.admin() as admin:
        _refuse_system(admin, topic)
        queues = admin.topic_config(topic).read_queue_nums
        messages = sum(admin.max_offset(topic, q) - admin.min_offset(topic, q) for q in range(queues))
        printer.note(f"topic {topic}: {counted(queues, 'queue')} with {counted(messages, 'message')}")
        if dry_run:
            return ExitCode.DONE
        if not settings.yes and click.prompt("type its name to delete it", err=True) != topic:
            raise CommandFailed(f"topic {topic} was not deleted", reason="the name was not typed")
        admin.delete_topic(topic)
    printer.note(f"topic {topic} deleted")
    return ExitCode.DONE


@command.command()
@click.argument("topic")
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
