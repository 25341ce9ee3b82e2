"""Findings about the states of groups, which the broker decides: in words, with the usual cause and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from reput_cli.doctor.findings import Finding, fault, ok, warning
from reput_cli.group import health_text
from reput_protocol.commands.group_description import GroupHealth, GroupSummary, HealthState
from reput_protocol.printable import counted


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
                "give each program a group of its own; the log event subscription_conflict names the members",
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
