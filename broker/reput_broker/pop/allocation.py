"""Shares the queues of a topic out among the members of a group (RocketMQ: QueryAssignmentProcessor)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reput_protocol.record.message import MessageQueue

Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]


def averagely(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Return consecutive queues; the first members get one more (RocketMQ: AllocateMessageQueueAveragely)."""
    index = members.index(member)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def by_circle(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Return every n-th queue (RocketMQ: AllocateMessageQueueAveragelyByCircle)."""
    return list(queues[members.index(member) :: len(members)])


STRATEGIES: dict[str, Strategy] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def allocate_for_pop(
    queues: Sequence[MessageQueue], members: Sequence[str], member: str, strategy: Strategy, share_with: int
) -> list[MessageQueue]:
    """Return what a member that pops gets (RocketMQ: allocate4Pop).

    Args:
        queues, members: sorted; `member` is one of them.
        share_with: how many members that follow this one share their queues with it; 0 or less: all.
    """
    if share_with <= 0 or share_with >= len(members) - 1:
        return sorted({MessageQueue(queue.topic, queue.broker_name, -1) for queue in queues})
    index = members.index(member)
    if len(members) > len(queues):
        return [queues[index % len(queues)]]
    found: dict[MessageQueue, None] = {}
    for step in range(share_with + 1):
        found |= dict.fromkeys(strategy(queues, members, members[(index + step) % len(members)]))
    return list(found)
