"""The methods of `Consumer` for its queues: assignment, positions, lag, commit, seek, pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import cached_property

from reput_client.consume.group.assigned_queue import AssignedQueue
from reput_client.consume.group.member import MemberParts
from reput_client.consume.group.subscriber import Subscriber
from reput_client.consume.group.taking import Taking
from reput_client.consume.offsets import OffsetRequests
from reput_client.errors import QueueNotAssigned
from reput_protocol.record.message import MessageQueue


class GroupPositions(Subscriber):
    """The methods of a consumer for its assigned queues."""

    _member: MemberParts
    _taking: Taking

    @cached_property
    def _offsets(self) -> OffsetRequests:
        return OffsetRequests(self._session)

    @property
    def assignment(self) -> list[MessageQueue]:
        """This member's queues now, including those of the retry topic."""
        return sorted(queue for queue, assigned in self._member.fetcher.queues.items() if assigned.confirmed)

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset of the first unhandled message of each assigned queue."""
        return {queue: self._assigned(queue).progress.position for queue in self.assignment}

    async def lag(self) -> dict[MessageQueue, int]:
        """Return how many offsets of each assigned queue, from its position to its end, are not handled.

        The broker filters later, so messages that a filter leaves out are included.

        Raises:
            ReputError: a broker does not answer.
        """
        ends = {queue: await self._offsets.max_offset(queue) for queue in self.assignment}
        positions = self.positions()
        return {queue: max(0, ends[queue] - at) for queue, at in positions.items() if queue in ends}

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit all progress now, including the message last received by iteration; once it returns, it is durable.

        Args:
            offsets: commit only these queues, each at the offset after its last handled message: all delivered messages
                below it count as handled.

        Raises:
            QueueNotAssigned: one of the queues is not assigned to this member.
            ValueError: an offset is below the position, where `seek` goes, or above the last delivered message.
            ReputError: the offset store failed; progress is kept and committed later.
        """
        if offsets is None:
            self._taking.current_is_handled()
            await self._member.commits.commit(self._member.fetcher.queues.values())
            return
        chosen = {self._assigned(queue): offset for queue, offset in offsets.items()}
        for assigned, offset in chosen.items():
            first, end = assigned.progress.position, assigned.progress.delivered_to
            if not first <= offset <= end:
                raise ValueError(
                    f"cannot commit offset {offset} of {assigned.queue}: its position is {first}, and messages before "
                    f"{end} were delivered; use seek to continue elsewhere"
                )
        for assigned, offset in chosen.items():
            assigned.handled_before(offset)
        self._member.fetcher.wake()  # there may be room for pulls
        await self._member.commits.commit(chosen)

    # -- seeking -----------------------------------------------------------------------------------------------

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at `offset` in an assigned queue, which is also committed.

        Messages in flight from `offset` on do not count any more when they are handled; those below still count. The
        background commits at once; await `commit` to be sure. At an offset that the queue does not have, the broker
        says where to continue: at the queue's start or end.

        Raises:
            QueueNotAssigned: `queue` is not assigned to this member.
            ValueError: the offset is negative.
        """
        if offset < 0:
            raise ValueError(f"cannot seek to offset {offset}; offsets start at 0")
        self._member.seek(self._assigned(queue), offset)

    async def seek_to_time(self, when: datetime | int, queue: MessageQueue | None = None) -> None:
        """Continue at the first message stored at or after `when` (a datetime, or milliseconds since 1970).

        Without `queue`, here and below, in all assigned queues except those of the retry topic.

        Raises:
            QueueNotAssigned: `queue` is not assigned to this member.
            ReputError: a broker does not answer; queues asked before have moved.
        """
        await self._seek_each(queue, lambda each: self._offsets.offset_by_time(each, when))

    async def seek_to_beginning(self, queue: MessageQueue | None = None) -> None:
        """Continue at the first message still in the queue; otherwise like `seek_to_time`."""
        await self._seek_each(queue, self._offsets.min_offset)

    async def seek_to_end(self, queue: MessageQueue | None = None) -> None:
        """Continue with the next message that is sent; otherwise like `seek_to_time`."""
        await self._seek_each(queue, self._offsets.max_offset)

    async def _seek_each(
        self, queue: MessageQueue | None, offset_of: Callable[[MessageQueue], Awaitable[int]]
    ) -> None:
        if queue is not None:
            self._assigned(queue)
            self.seek(queue, await offset_of(queue))
            return
        retry = self._member.options.subscriptions.retry
        for each in self.assignment:
            if each.topic != retry:
                offset = await offset_of(each)
                if each in self.assignment:  # it may have moved to another member meanwhile
                    self.seek(each, offset)

    # -- pausing -----------------------------------------------------------------------------------------------

    def pause(self, *queues: MessageQueue) -> None:
        """Deliver nothing more of these queues, by default of all assigned ones, until `resume`.

        Prefetched messages are dropped and pulled again later. Membership, commits and messages in flight are not
        affected. A queue that moves to another member and returns is not paused.

        Raises:
            QueueNotAssigned: one of them is not assigned to this member; none was paused.
        """
        for assigned in self._several(queues):
            self._member.fetcher.pause(assigned)

    def resume(self, *queues: MessageQueue) -> None:
        """Deliver messages of these queues, by default of all assigned ones, again.

        Raises:
            QueueNotAssigned: one of them is not assigned to this member; none was resumed.
        """
        for assigned in self._several(queues):
            self._member.fetcher.resume(assigned)

    @property
    def paused(self) -> list[MessageQueue]:
        """The assigned queues that are paused."""
        return [queue for queue in self.assignment if self._assigned(queue).paused]

    def _several(self, queues: tuple[MessageQueue, ...]) -> list[AssignedQueue]:
        return [self._assigned(queue) for queue in queues or self.assignment]

    def _assigned(self, queue: MessageQueue) -> AssignedQueue:
        assigned = self._member.fetcher.queues.get(queue)
        if assigned is None or not assigned.confirmed:
            raise QueueNotAssigned(queue, self.assignment)
        return assigned
