"""`reput doctor broker | group`: a running broker, with an overview of its groups; one group, as the broker sees it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from reput_cli.completion import GROUP
from reput_cli.doctor.findings import CLOCK_S, Finding, fault, ok, report, unreachable, warning
from reput_cli.options import Settings, shared_options
from reput_cli.output import duration_text, health_text
from reput_protocol.commands.group_description import GroupDescription, GroupHealth, GroupSummary, HealthState
from reput_protocol.errors import GroupNotFound, ReputError, RequestNotSupported, TopicNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import DLQ_PREFIX
from reput_protocol.printable import counted
from reput_protocol.quantities import size_text

if TYPE_CHECKING:
    from reput_client.blocking import Admin
    from reput_protocol.commands.schedule import ScheduleDescription

RECENT_S = 600.0
"""Dead letters younger than this are growing."""
SLOW_S = 0.25
"""As in the alert LoopSlow."""
OPEN_TRANSACTIONS = 1000
"""As in the alert TransactionsStuck."""
_NEARLY = 0.9
_NAMED_MAX = 5


@click.command("broker")
@shared_options
def broker(settings: Settings) -> int:
    """Check a running broker, and name each group and schedule with a problem."""
    return report(settings, _examine_broker(settings))


def _examine_broker(settings: Settings) -> Iterator[Finding]:
    """Yield the findings about the broker of the settings."""
    started_at = time.monotonic()
    try:
        with settings.admin() as admin:
            status = admin.describe_broker()
            took_s, received_at_s = time.monotonic() - started_at, time.time()
            answer = f"{settings.server} answers in {1000 * took_s:.0f} ms (Reput {status.get('version')})"
            yield ok("connection", answer)
            checks: dict[str, Callable[[], Iterable[Finding]]] = {
                "speed": lambda: [check_speed(admin)],
                "environment": check_environment,
                "announced address": lambda: [check_address(settings, admin, status)],
                "kernel": lambda: [check_kernel(status)],
                "state": lambda: check_health(status),
                "disk": lambda: [check_disk(status)],
                "clock": lambda: [check_clock(status, received_at_s, took_s)],
                "configuration": lambda: [check_configuration(status)],
                "connections": lambda: check_clients(admin, status),
                "delayed messages": lambda: check_delays(status),
                "transactions": lambda: check_transactions(status),
                "name server": lambda: check_name_servers(status),
                "proxy": lambda: check_proxy(status),
                "schedules": lambda: check_schedules(_schedules(admin)),
                "groups": lambda: check_groups(admin.list_groups()),
                "dead letters": lambda: [check_dead_letters(admin)],
            }
            for name, check in checks.items():
                try:
                    yield from check()
                except ReputError as error:
                    yield fault(name, "cannot be checked", str(error).splitlines()[0], "reput doctor cluster")
    except ReputError as error:
        yield unreachable(settings.server, error)


def check_speed(admin: Admin) -> Finding:
    """Check how long the broker takes to answer."""
    times = []
    for _ in range(3):
        started_at = time.monotonic()
        admin.describe_broker()
        times.append(time.monotonic() - started_at)
    median_s = sorted(times)[1]
    if median_s > SLOW_S:
        return warning(
            "speed",
            f"a response takes {duration_text(median_s)}",
            "the broker's event loop is late, because its machine lacks CPU or swaps; or the network is slow",
            "top, vmstat 1 on its machine; the panel Loop delay",
        )
    return ok("speed", f"a response takes {1000 * median_s:.0f} ms")


def check_kernel(status: Mapping[str, Any]) -> Finding:
    """Check that the code that reads records is compiled."""
    if status.get("kernel") == "interpreted":
        return warning(
            "kernel",
            "the code that reads and checks records runs interpreted, which takes several times the CPU",
            "there was no C compiler when Reput was installed, or it failed",
            "install gcc and the headers of Python (python3-dev), then install Reput again",
        )
    return ok("kernel", str(status.get("kernel")))


def check_environment() -> Iterator[Finding]:
    """Find REPUT_ variables that nothing reads."""
    from reput_broker.config.environment import OTHER_VARIABLES, own_variables, unknown_variables

    if own_variables(os.environ).keys() <= OTHER_VARIABLES.keys():
        return
    from reput_broker.config.loading import option_variables

    for name, near in unknown_variables(os.environ, option_variables()).items():
        yield fault(
            "environment",
            f"the variable {name} means nothing",
            f"did you mean {near}?" if near else "no option has this name",
            "unset it; reput config check names all mistakes",
        )


def check_address(settings: Settings, admin: Admin, status: Mapping[str, Any]) -> Finding:
    """Check that clients reach this broker where routes announce it."""
    info = admin.cluster_info()
    own = next(
        (
            address
            for data in info.broker_addr_table.values()
            for number, address in data.broker_addrs.items()
            if number == (status.get("broker_id") if status.get("role") == "SLAVE" else 0)
            and data.broker_name == status.get("broker_name", data.broker_name)
        ),
        None,
    )
    advice = "set advertise to an address that clients reach (REPUT_ADVERTISE=HOST:PORT), then restart the broker"
    if own is None:
        return fault(
            "announced address", "routes do not name this broker", "it is not registered", "reput cluster status"
        )
    try:
        with replace(settings, server=own).admin() as other:
            there = other.describe_broker()
    except (ReputError, ValueError) as error:
        return fault(
            "announced address",
            f"routes name {own}, where no broker responds",
            f"RocketMQ's clients connect to the address in the route; {str(error).splitlines()[0]}",
            advice,
        )
    if there.get("started_at") != status.get("started_at"):
        return fault(
            "announced address",
            f"routes name {own}, which is another broker",
            "the option advertise has the address of another broker, or two brokers have one name",
            advice,
        )
    return ok("announced address", f"{own} is this broker")


_NEXT = {
    "recovered": "wait: do not kill it; the log shows its progress",
    "not_draining": "wait until it has stopped, or has changed its role: reput cluster status",
    "intake": "reput broker drain --off, or reput broker readonly --off",
    "writable": "the last error in its log names file and reason; check the disk, then restart the broker",
    "disk_space": "free space on the disk, or shorten store.file_reserved_time",
    "directories": "stop the broker, move or mount the directory back, then start it",
    "commit_log_dirs": "check that disk, or take its directory out of use",
    "log_files": "raise ulimit -n, or check the rights of the data directory",
    "index": "messages are stored; free space, then the index is completed",
    "tables": "check the disk of the data directory",
    "replication": "reput doctor cluster",
    "proxy": "the last events of the proxy in the broker's log, then reput doctor proxy",
}


def check_health(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Check the state of the broker, and name each of its own checks that fails."""
    failing = {name: check for name, check in status.get("checks", {}).items() if not check["ok"]}
    if not failing:
        yield ok("state", f"{status['state']}, ready")
    for name, check in failing.items():
        ready = "not ready" if check["gates_readiness"] else "ready"
        yield fault(
            f"state ({name})",
            f"{status['state']}, {ready}, since {duration_text(max(0.0, time.time() - check['since']))}",
            check["detail"] or name,
            _NEXT.get(name, "reput broker status, and the broker's log"),
        )


def check_disk(status: Mapping[str, Any]) -> Finding:
    """Check how full the disk of the store is."""
    disk = status.get("disk")
    if not disk:
        return ok("disk", "not looked up yet")
    used = f"used {100 * disk['log_used_ratio']:.0f} %, {size_text(disk['free_bytes'])} free"
    where = f"df -h {status.get('data_dir', '')}"
    if disk["level"] == "refuse":
        return fault(
            "disk",
            f"{used}: new messages are rejected",
            "the disk is used beyond store.disk_warning_ratio",
            f"{where}; free space, and the broker continues without a restart",
        )
    if disk.get("log_free_bytes", disk["free_bytes"]) < disk.get("log_file_bytes", 0):
        return fault(
            "disk",
            f"{used}: no room for another log file of {size_text(disk['log_file_bytes'])}",
            "when the files that are there are full, new messages are rejected",
            f"{where}; free space, shorten store.file_reserved_time, or set a smaller store.commit_log_file_size",
        )
    if disk["level"] == "clean" or disk["log_used_ratio"] > _NEARLY:
        return warning(
            "disk",
            f"{used}: nearly full",
            "expired files are deleted early; beyond store.disk_warning_ratio new messages are rejected",
            f"{where}; free space, or shorten store.file_reserved_time",
        )
    return ok("disk", used)


def check_clock(status: Mapping[str, Any], received_at_s: float, took_s: float) -> Finding:
    """Compare the broker's clock with that of this machine.

    Args:
        received_at_s: when the answer with `status` came.
        took_s: how long the answer took, which is the error of the comparison.
    """
    skew_s = status["clock_ms"] / 1000 - received_at_s
    if abs(skew_s) > CLOCK_S + took_s:
        way = "ahead of" if skew_s > 0 else "behind"
        return fault(
            "clock",
            f"the broker's clock is {duration_text(abs(skew_s))} {way} this machine's",
            "one of the two machines does not synchronize its clock",
            "timedatectl on both; start chrony or systemd-timesyncd",
        )
    return ok("clock", f"within {duration_text(CLOCK_S)} of this machine's")


def check_configuration(status: Mapping[str, Any]) -> Finding:
    """Check that the last reload was accepted."""
    if status.get("config_reload_ok") is False:
        return fault(
            "configuration",
            "the changed configuration has errors; the broker runs with the one before",
            "the log event config_reload_failed lists every mistake",
            "reput config check -c FILE, correct it, then reput config reload",
        )
    return ok("configuration", f"digest {status.get('config_digest')}")


def check_clients(admin: Admin, status: Mapping[str, Any]) -> Iterator[Finding]:
    """Check the number of connections against their limit."""
    limit = next(option.value for option in admin.broker_config() if option.key == "limits.connections")
    store = status.get("store") or {}
    used = store.get("connections", 0)
    if used >= _NEARLY * limit:
        yield fault(
            "connections",
            f"{used} of {limit}; more clients are rejected",
            "clients open connections and do not close them, or limits.connections is too low",
            "reput client list, then reput config set limits.connections=N",
        )
    else:
        yield ok("connections", f"{used} of {limit}")


def check_delays(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that delayed messages are delivered in time."""
    delayed = status.get("delayed")
    if not delayed:
        return
    if delayed["due_s"] > 5:
        yield fault(
            "delayed messages",
            f"the next one has been due for {duration_text(delayed['due_s'])}",
            "the store takes no messages, or more are due than the broker delivers",
            "reput broker status, and the log event delayed_delivery_failed",
        )
    else:
        yield ok("delayed messages", f"{delayed['waiting']} wait, none is late")
    if delayed["dropped"]:
        yield warning(
            "delayed messages (given up)",
            f"{counted(delayed['dropped'], 'message')} since the start",
            "their topic or their log file was deleted before they were due",
            "the log event delayed_message_dropped names each with its reason",
        )


def check_transactions(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that half messages are decided."""
    transactions = status.get("transactions")
    if not transactions:
        return
    if transactions["open"] > OPEN_TRANSACTIONS:
        yield fault(
            "transactions",
            f"{transactions['open']} half messages wait for their producers' decision",
            "no producer of their groups is online, or its check returns unknown",
            "reput client list --role producer; start a producer of the group, and read its log",
        )
    else:
        yield ok("transactions", f"{transactions['open']} open")


def check_name_servers(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that every configured name server lists this broker."""
    for address, state in status.get("name_servers", {}).items():
        if state == "registered":
            yield ok("name server", f"{address} lists this broker")
        else:
            yield fault(
                "name server",
                f"{address} does not list this broker",
                str(state),
                "is it running: reput cluster status --server " + address + "; the option name_servers has its address",
            )


def check_proxy(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that the proxy of proxy_port stays up; one that is not ready is a fault of the broker's state."""
    proxy = status.get("proxy")
    if not proxy or not proxy["ready"]:
        return
    if proxy["starts"] > 1:
        yield warning(
            "proxy",
            f"its process has ended {counted(proxy['starts'] - 1, 'time')} since the broker's start",
            "the event proxy_ended has its exit code; -9 is a kill, mostly for lack of memory",
            "the broker's log, and dmesg on its machine",
        )
    else:
        yield ok("proxy", f"serves gRPC clients at port {proxy['port']}")


def _schedules(admin: Admin) -> list[ScheduleDescription]:
    """Return the schedules; none of a broker whose version has none."""
    try:
        return admin.list_schedules()
    except RequestNotSupported:
        return []


def check_schedules(schedules: list[ScheduleDescription]) -> Iterator[Finding]:
    """Name each schedule that does not send as it should, as the broker says."""
    ill = [schedule for schedule in schedules if schedule.state.is_fault]
    for schedule in ill:
        name, since = schedule.definition.name, schedule.since_time
        yield fault(
            "schedules",
            f"{name} is {schedule.state}" + ("" if since is None else f" since {since:%Y-%m-%d %H:%M:%S} UTC"),
            schedule.reason,
            f"reput schedule describe {name}; once it can send: reput schedule run {name}",
        )
    if schedules and not ill:
        yield ok("schedules", f"{counted(len(schedules), 'schedule')}, none fails or has missed its last time")


def check_dead_letters(admin: Admin) -> Finding:
    """Name topics of dead letters that grow."""
    found: dict[str, int] = {}
    recent = []
    for topic in admin.list_topics():
        if not topic.startswith(DLQ_PREFIX):
            continue
        count, age_s = dead_letters(admin, topic.removeprefix(DLQ_PREFIX))
        if count:
            found[topic.removeprefix(DLQ_PREFIX)] = count
            if age_s < RECENT_S:
                recent.append(topic.removeprefix(DLQ_PREFIX))
    if recent:
        return fault(
            "dead letters",
            f"{_some(recent)} {'has' if len(recent) == 1 else 'have'} new dead letters in the last "
            f"{duration_text(RECENT_S)} ({counted(found[recent[0]], 'dead letter')} of {recent[0]})",
            "a consumer rejects them, or fails in every attempt; peek shows the cause",
            f"reput dlq peek {recent[0]}, then reput dlq replay {recent[0]}",
        )
    if found:
        return warning(
            "dead letters",
            f"{counted(sum(found.values()), 'message')} of {_some(list(found))}, none recent",
            "they expire like all messages",
            f"reput dlq peek {next(iter(found))}",
        )
    return ok("dead letters", "none")


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


@click.command("group")
@click.argument("group", metavar="GROUP", type=GROUP)
@shared_options
def group(settings: Settings, group: str) -> int:
    """Check GROUP: its state, with the member and the queue that it concerns, and its dead letters."""
    return report(settings, _examine_group(settings, group))


def _examine_group(settings: Settings, name: str) -> Iterator[Finding]:
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
        yield fault("enabled", "the group may not consume", "it was disabled", f"reput group alter {name} --enable")
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
