"""The rules by which the members of a group divide the queues of a topic. No I/O.

Every member applies the same rule to the same queues and member ids, both sorted by `allocate`. The rules are exactly
RocketMQ's (AllocateMessageQueueStrategy and the classes named below), so its clients may be members.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias

from reput_protocol.record.message import MessageQueue

AllocationStrategy: TypeAlias = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""Called with the member's client id, all queues and all ids, both sorted; returns the member's queues."""

VIRTUAL_NODES: Final = 10


def allocate(
    strategy: AllocationStrategy, client_id: str, queues: Iterable[MessageQueue], members: Collection[str]
) -> list[MessageQueue]:
    """Return the queues of `client_id`; none if it is not a member."""
    if client_id not in members:
        return []
    return strategy(client_id, sorted(queues), sorted(set(members)))


def averagely(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Give each member a range of queues, the first ones one more (RocketMQ: AllocateMessageQueueAveragely)."""
    size, more = divmod(len(queues), len(members))
    index = members.index(client_id)
    start = index * size + min(index, more)
    return list(queues[start : start + size + (index < more)])


def circularly(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Deal out queues one by one (RocketMQ: AllocateMessageQueueAveragelyByCircle)."""
    return list(queues[members.index(client_id) :: len(members)])


def by_machine_room(rooms: Iterable[str]) -> AllocationStrategy:
    """Allocate only queues of brokers in `rooms`, with names like `room@broker`.

    Members get equal ranges; the first members also get one of the remaining queues each (RocketMQ:
    AllocateMessageQueueByMachineRoom).
    """
    wanted = frozenset(rooms)

    def strategy(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        near = [queue for queue in queues if _room(queue.broker_name) in wanted]
        size, more = divmod(len(near), len(members))
        index = members.index(client_id)
        mine = near[index * size : (index + 1) * size]
        if index < more:
            mine.append(near[len(members) * size + index])
        return mine

    return strategy


def _room(broker_name: str) -> str | None:
    parts = broker_name.rstrip("@").split("@")  # Java's split drops empty parts at the end only
    return parts[0] if len(parts) == 2 else None


def by_config(mine: Iterable[MessageQueue]) -> AllocationStrategy:
    """Allocate, of each topic, the given queues (RocketMQ: AllocateMessageQueueByConfig).

    What other members there are does not matter.
    """
    fixed = list(mine)

    def strategy(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        del client_id, members
        here = set(queues)
        return [queue for queue in fixed if queue in here]

    return strategy


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> AllocationStrategy:
    """Place queues and members on one ring, so that a change of members moves few queues.

    RocketMQ: AllocateMessageQueueConsistentHash with MD5; each member is on the ring `virtual_nodes` times.
    """
    if virtual_nodes < 1:
        raise ValueError(f"virtual_nodes must be 1 or more, not {virtual_nodes}")

    def strategy(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        owners: dict[int, str] = {}
        for member in members:
            for number in range(virtual_nodes):
                owners[_md5_place(f"{member}-{number}")] = member
        ring = sorted(owners)
        return [queue for queue in queues if owners[_next_place(ring, _queue_place(queue))] == client_id]

    return strategy


def _queue_place(queue: MessageQueue) -> int:
    topic, broker_name, queue_id = queue
    return _md5_place(f"MessageQueue [topic={topic}, brokerName={broker_name}, queueId={queue_id}]")


def _next_place(ring: Sequence[int], place: int) -> int:
    index = bisect_left(ring, place)
    return ring[index] if index < len(ring) else ring[0]


def _md5_place(key: str) -> int:
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")
