"""`reput consume --group`: read a topic as one member of a group, among others perhaps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from reput_cli.options import Settings
from reput_cli.output import say, write_message
from reput_client import Consumer
from reput_client.errors import ConnectionLost, DamagedMessage
from reput_client.received import ReceivedMessage
from reput_protocol.message import MessageQueue
from reput_protocol.names import retry_topic

_LOOK_ROUND_S = 0.25
_COMMIT_INTERVAL_S = 1.0


def print_message(message: ReceivedMessage, render: Callable[[ReceivedMessage], str]) -> bool:
    """Print a message, or name its damage on stderr; return whether it was whole."""
    try:
        _ = message.raw_body  # checks it, whatever of it is to be shown
        line = render(message)
    except DamagedMessage as error:
        say(f"{error}; going on with the next")
        return False
    write_message(line)
    return True


@dataclass(slots=True)
class GroupFollower:
    """Prints what falls to this member of a group; what was printed counts as handled."""

    settings: Settings
    topic: str
    group: str
    tags: str
    sql: str | None
    render: Callable[[ReceivedMessage], str]
    remaining: int | None
    patient: bool
    """Whether there is no end to reach: a broker that goes away is waited for."""
    has_met_damage: bool = False

    async def run(self, spans: Mapping[int, tuple[int, int | None]]) -> None:
        """Follow the queues that are ours, each from where the group is, or from its start, to its end."""
        # The command says itself what its user has to know.
        logging.getLogger("reput_client").addHandler(logging.NullHandler())

        def start(queue: MessageQueue) -> int:
            return spans.get(queue.queue_id, (0, None))[0]

        async with Consumer(
            self.settings.server,
            group=self.group,
            topic=self.topic,
            tags=self.tags,
            sql=self.sql,
            start=start,
            commit_interval_s=_COMMIT_INTERVAL_S,
            timeout_s=self.settings.timeout_s,
        ) as consumer:
            ends = {queue_id: end for queue_id, (_, end) in spans.items() if end is not None}
            while self.remaining != 0:
                message = await consumer.take(_LOOK_ROUND_S)
                if message is not None:
                    self._print(consumer, message, ends)
                elif self._is_over(consumer, ends):
                    return
                elif not consumer.connected:
                    await self._wait_for_the_broker(consumer)

    def _print(self, consumer: Consumer, message: ReceivedMessage, ends: Mapping[int, int]) -> None:
        queue = message.queue
        end = ends.get(queue.queue_id) if queue.topic == self.topic else None
        if end is not None and message.queue_offset >= end:
            return  # for whoever consumes on; it stays unhandled, so nothing from it on is committed
        if not print_message(message, self.render):
            self.has_met_damage = True
        consumer.done(message)
        if self.remaining is not None:
            self.remaining -= 1

    def _is_over(self, consumer: Consumer, ends: Mapping[int, int]) -> bool:
        """Whether every queue that is ours has reached its end; the other members see to theirs."""
        if self.patient or not consumer.connected:
            return False
        positions = {
            queue.queue_id: position
            for queue, position in consumer.positions().items()
            if queue.topic != retry_topic(self.group)
        }
        return all(position >= ends.get(queue_id, 0) for queue_id, position in positions.items())

    async def _wait_for_the_broker(self, consumer: Consumer) -> None:
        """Whoever waits for more waits for the broker too, and says so once."""
        lost = ConnectionLost(self.settings.server, "the broker closed it")
        if not self.patient:
            raise lost
        if not self.settings.quiet:
            say(f"{lost}; waiting until it is back")
        while not consumer.connected and not consumer.closed:
            message = await consumer.take(_LOOK_ROUND_S)
            if message is not None:
                self._print(consumer, message, {})
