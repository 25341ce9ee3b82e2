"""Offsets that an administrator has set, until the group's members have taken notice (RocketMQ: resetOffsetTable).

Members keep their offsets in memory and commit them every few seconds, so a new offset in the table would soon be
overwritten. Therefore it is pending as well: until the next pull of the queue, which is answered with the new offset,
what members commit there is ignored. Pending resets are not kept over a restart; the new offsets are.
"""

from __future__ import annotations


class PendingResets:
    """The offsets that members do not know of yet."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str, int], int] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Have the group's next pull of a queue answered with `offset`."""
        self._pending[group, topic, queue_id] = offset

    def is_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Tell whether the group does not know its new offset of a queue yet."""
        return bool(self._pending) and (group, topic, queue_id) in self._pending

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the new offset for a member that pulls, and forget it; None if there is none."""
        if not self._pending:
            return None
        return self._pending.pop((group, topic, queue_id), None)

    def forget_group(self, group: str) -> None:
        """Forget a group that is deleted."""
        for key in [key for key in self._pending if key[0] == group]:
            del self._pending[key]

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is deleted."""
        for key in [key for key in self._pending if key[1] == topic]:
            del self._pending[key]
