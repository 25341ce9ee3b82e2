"""Messages not handled in time: a handler hangs, or the application neither acknowledges nor gives back.

Such a message holds back its queue's commits, and then its pulls (`FlowLimits.queue_span_max`). So it is given back to
the broker and counts as handled (RocketMQ: ConsumeMessageConcurrentlyService.cleanExpireMsg, consumeTimeout); if its
handler finishes after all, it is handled twice. A hanging handler keeps its slot of `run(concurrency=n)`. When all
hang, this member keeps its queues but handles nothing more; that is logged.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from typing_extensions import override

from reput_client.consume.group.assigned_queue import AssignedQueue, Iteration, Taken
from reput_client.consume.group.serving import Serving
from reput_client.consume.send_back import is_unsupported, send_back
from reput_client.received import ReceivedMessage
from reput_client.transport.background import Chore
from reput_client.transport.session import Session
from reput_protocol.errors import ReputError
from reput_protocol.record.message import MessageQueue

_LOOKS: Final = 4
"""How often a message is checked before it is overdue."""
_INTERVAL_MAX_S: Final = 60.0

log = logging.getLogger("reput_client")


class RunningHandlers:
    """How many handlers may run at a time (0 without `run`), and the message of each.

    A single handler has the iteration's current message, so nothing is noted here.

    Attributes:
        slots: with several handlers, the message of each; the code that runs a handler updates its slot.
    """

    def __init__(self, iteration: Iteration) -> None:
        self._iteration = iteration
        self.count = 0
        self.slots: list[ReceivedMessage | None] = []

    def begin(self, count: int) -> None:
        """Note the start of `run` with `count` handlers."""
        self.count = count
        self.slots = [None] * (count if count > 1 else 0)

    def end(self) -> None:
        """Note the end of `run`."""
        self.begin(0)

    @property
    def is_single(self) -> bool:
        """Whether there is one handler, which has the iteration's current message."""
        return self.count == 1

    def held(self) -> list[ReceivedMessage]:
        """Return the messages that handlers have."""
        slots = [self._iteration.message] if self.is_single else self.slots
        return [message for message in slots if message is not None]


class Overdue(Chore):
    """Gives back overdue messages; a background chore.

    It checks periodically, so that delivering a message costs nothing. The current message of an iterating application
    is left alone: no other message waits for it.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        queues: Mapping[MessageQueue, AssignedQueue],
        serving: Serving,
        handlers: RunningHandlers,
        timeout_s: float,
        handled: Callable[[Taken], None],
    ) -> None:
        """`handled` is called with each message given back."""
        self._session = session
        self._group = group
        self._queues = queues
        self._serving = serving
        self._handlers = handlers
        self._timeout_s = timeout_s
        self._handled = handled
        self._seen: dict[tuple[MessageQueue, int], tuple[ReceivedMessage, float]] = {}
        self._pending: deque[Taken] = deque()  # overdue and not given back yet
        self._hanging: list[ReceivedMessage] = []  # overdue messages of running handlers
        self._all_hang = False
        self._due_at = math.inf

    def begin(self) -> None:
        """Start to check."""
        self._due_at = self._session.runtime.now() + min(self._timeout_s / _LOOKS, _INTERVAL_MAX_S)

    @override
    def next_due(self) -> float:
        return self._due_at

    @override
    async def do(self) -> None:
        """Give back at most one message, since that may take a while and other chores wait."""
        if not self._pending:
            self._pending.extend(self._overdue())
        self._look_at_handlers()
        self.begin()
        while self._pending:
            taken = self._pending.popleft()
            if self._is_in_hand(taken):
                await self._give_back(taken)
                break
        if self._pending:
            self._due_at = self._session.runtime.now()

    def _is_in_hand(self, taken: Taken) -> bool:
        """Whether a message is still to be given back; giving back those before it takes time."""
        assigned, message = taken
        return (
            self._queues.get(assigned.queue) is assigned
            and assigned.progress.holds(message.queue_offset, message)
            and not self._serving.will_come(message)
            and message.queue_offset not in assigned.deciding
        )

    async def _give_back(self, taken: Taken) -> None:
        try:
            await send_back(
                self._session,
                taken[1],
                group=self._group,
                queue=taken[0].queue,
                reason=f"not handled within {self._timeout_s:.6g} s",
            )
        except ReputError as error:
            log.warning("%s; not returned to the broker: %s", self._story(taken), error)
            if is_unsupported(error):
                self._pending.clear()
                self._due_at = math.inf
        else:
            log.warning("%s; returned to the broker", self._story(taken))
            self._handled(taken)

    def _look_at_handlers(self) -> None:
        """Log when all handlers of `run` hang, and when one has returned."""
        held = self._handlers.held()
        overdue = [*self._hanging, *(message for _, message in self._pending)]
        self._hanging = [message for message in held if any(message is other for other in overdue)]
        all_hang = 0 < self._handlers.count <= len(self._hanging)
        if all_hang and not self._all_hang:
            log.error(
                "group %s: all %d handlers of run hang, each for more than %.6g s: this member handles nothing until "
                "one of them returns, and keeps its queues; end it if none does",
                self._group,
                self._handlers.count,
                self._timeout_s,
            )
        elif self._all_hang and not all_hang:
            log.warning("group %s: a handler of run has returned, messages are handled again", self._group)
        self._all_hang = all_hang

    def _overdue(self) -> list[Taken]:
        now = self._session.runtime.now()
        seen, self._seen = self._seen, {}
        found: list[Taken] = []
        for queue, assigned in self._queues.items():
            for message in assigned.progress.unhandled:
                if message is self._serving.iteration.message and not self._handlers.is_single:
                    continue
                key = queue, message.queue_offset
                before, since = seen.get(key, (None, now))
                if before is not message:
                    since = now
                if now - since >= self._timeout_s:
                    if self._is_in_hand((assigned, message)):
                        found.append((assigned, message))
                    since = now
                self._seen[key] = message, since
        return found

    def _story(self, taken: Taken) -> str:
        assigned, message = taken
        topic, _, queue_id = assigned.queue
        return (
            f"group {self._group}: message {message.queue_offset} of {topic}/{queue_id} was not handled within "
            f"{self._timeout_s:.6g} s"
        )
