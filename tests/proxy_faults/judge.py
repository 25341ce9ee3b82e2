"""The judge of repeated messages: which deliveries of a message the kills do not explain.

Delivery is at least once, and a message whose acknowledgement was answered OK does not come again. The broker's time of
each pop is in the receipt handle, so that a delivery which was under way when the answer came is not mistaken for a
later one. docs/pop.md has the exceptions, which are about pops at the time of a kill. A message is stored twice only if
a kill fell into its send.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from interop.client import Acknowledged
from reput_protocol.commands.pop import PopHandle

SETTLED_S = 15.0
"""A message that was received so long before a kill is acknowledged by then, unless a client waited for its answer."""
JUST_BEFORE_S = 1.0
"""A pop so short before the kill of a broker may be forgotten with it."""
_DIRECT = "0"
"""The mark in the handle of a pop from the topic itself, not from that of its retries."""


class Span(NamedTuple):
    """When something began and ended, in s since 1970."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as a consumer got it, by its receipt handle and when it came (s since 1970)."""

    receipt: str
    received_at: float

    @property
    def handle(self) -> PopHandle:
        """Which pop it is of."""
        return PopHandle.parse(self.receipt)

    @property
    def popped_at(self) -> float:
        """When the broker took it from its queue, in s since 1970."""
        return self.handle.pop_time / 1000

    @property
    def until(self) -> float:
        """When the invisible time that it was popped with ends: later acknowledgements have no effect."""
        return (self.handle.pop_time + self.handle.invisible_time) / 1000

    def is_another_copy(self, other: Delivery) -> bool:
        """Whether both are of the topic itself, at different places: the message is stored twice."""
        mine, its = self.handle, other.handle
        places = [(each.broker_name, each.queue_id, each.queue_offset) for each in (mine, its)]
        return mine.mark == its.mark == _DIRECT and places[0] != places[1]


@dataclass(frozen=True)
class History:
    """What was sent, delivered and acknowledged, and what was killed meanwhile.

    Attributes:
        sends: by body, also those that have failed.
        deliveries: by consumer and body.
        acks: by the consumer's name and receipt handle.
        kills: each from the signal until all is ready again.
        brokers_die: whether brokers are among the killed, and their pops with them.
    """

    sends: Mapping[bytes, Span]
    deliveries: Mapping[tuple[str, bytes], Sequence[Delivery]]
    acks: Mapping[tuple[str, str], Sequence[Acknowledged]]
    kills: Sequence[Span] = field(default_factory=list)
    brokers_die: bool = True

    def repeats(self) -> Iterable[tuple[str, bytes, Sequence[Delivery], Delivery]]:
        """Yield the deliveries that were not the first, each with the earlier ones."""
        for (consumer, body), found in self.deliveries.items():
            ordered = sorted(found, key=lambda delivery: delivery.popped_at)
            for number, delivery in enumerate(ordered[1:], start=1):
                yield consumer, body, ordered[:number], delivery


def unexplained(history: History) -> list[str]:
    """Return the repeated deliveries that must not be, a line each."""
    found = []
    for consumer, body, earlier, repeat in history.repeats():
        if _is_first_of_a_copy(earlier, repeat):
            if not _killed_during(history, history.sends[body]):
                found.append(
                    f"{consumer}: {body!r} is stored twice, and no kill fell into its send: "
                    f"{earlier[0].receipt!r} and {repeat.receipt!r}"
                )
            continue
        acknowledged = [
            (delivery, ack)
            for delivery in earlier
            for ack in _effective(history, consumer, delivery)
            if ack.answered_at < repeat.popped_at and not delivery.is_another_copy(repeat)
        ]
        wrong = next((ack for each, ack in acknowledged if not _excused(history, body, each, ack)), None)
        if wrong is not None:
            late_s = repeat.popped_at - wrong.answered_at
            found.append(
                f"{consumer}: {body!r} was popped again {late_s:.1f} s after its acknowledgement was answered OK: "
                f"{wrong.receipt!r}, again {repeat.receipt!r}"
            )
        elif not acknowledged and not _killed_around(history, earlier[-1].received_at):
            after_s = repeat.received_at - earlier[-1].received_at
            found.append(f"{consumer}: {body!r} was received again after {after_s:.1f} s, and no kill explains it")
    return found


def _is_first_of_a_copy(earlier: Sequence[Delivery], delivery: Delivery) -> bool:
    """Return whether earlier deliveries were of other copies of the message only."""
    direct = [each for each in earlier if each.handle.mark == _DIRECT]
    return bool(direct) and all(delivery.is_another_copy(each) for each in direct)


def _killed_during(history: History, send: Span) -> bool:
    """Return whether a kill may have had a client send again what was stored."""
    return any(send.start <= kill.end and kill.start <= send.end for kill in history.kills)


def _effective(history: History, consumer: str, delivery: Delivery) -> Iterable[Acknowledged]:
    """Return the acknowledgements of a delivery that were answered OK in time."""
    return [
        ack
        for ack in history.acks.get((consumer, delivery.receipt), ())
        if ack.outcome == "OK" and ack.answered_at < delivery.until
    ]


def _excused(history: History, body: bytes, delivery: Delivery, ack: Acknowledged) -> bool:
    """Return whether a kill explains that a message comes again after an acknowledgement of a delivery of it.

    A pop that the kill of a broker has left without an answer redelivers its message, and one that the broker has
    answered just before may be forgotten: the message can be popped again, and is then there twice, whatever
    becomes of the second. A send that a kill has interrupted may have stored the message twice, too.
    """
    sent = history.sends[body]
    return any(
        sent.start <= kill.end
        and kill.start - JUST_BEFORE_S <= delivery.popped_at
        and kill.start <= ack.answered_at
        and (history.brokers_die or sent.end >= kill.start)
        for kill in history.kills
    )


def _killed_around(history: History, received_at: float) -> bool:
    return any(kill.start - SETTLED_S <= received_at <= kill.end + SETTLED_S for kill in history.kills)
