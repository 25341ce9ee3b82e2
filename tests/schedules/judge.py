"""What schedules have sent, and whether each time was sent once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from reput_client.blocking import Admin, PullConsumer
from reput_client.received import ReceivedMessage

_PHASE_MS: Final = 50
_SLOW_MS: Final = 300
"""Schedules are looked at one after the other."""


class Plan(NamedTuple):
    """The times of a schedule.

    Attributes:
        created_ms: the moment of its creation.
        anchor_ms: its times are whole intervals after this.
        is_latest_only: of times that have passed without a master it sends only the latest.
    """

    created_ms: int
    anchor_ms: int
    interval_ms: int
    is_latest_only: bool = False

    def times(self, until_ms: int) -> range:
        """Return the times before `until_ms`."""
        passed = (self.created_ms - self.anchor_ms) // self.interval_ms
        return range(self.anchor_ms + (passed + 1) * self.interval_ms, until_ms, self.interval_ms)

    def has(self, time_ms: int) -> bool:
        """Whether this is one of its times, of any day."""
        return time_ms > self.created_ms and (time_ms - self.anchor_ms) % self.interval_ms == 0


class Verdict(NamedTuple):
    """What a judge has found."""

    times: int
    """How many times of schedules have passed."""
    left_out: int
    """How many of them were missed in favour of a later one, by schedules that send only the latest."""
    late_s: Sequence[float]
    """How late each message was stored, sorted."""
    wrong: Sequence[str]


def read_all(address: str | Sequence[str], topic: str) -> list[ReceivedMessage]:
    """Return every message of a topic."""
    found: list[ReceivedMessage] = []
    with Admin(address) as admin:
        queues = sorted(admin.topic_stats(topic).offset_table)
    with PullConsumer(address, group="judge") as consumer:
        for queue in queues:
            offset, end = 0, consumer.max_offset(topic, queue.queue_id)
            while offset < end:
                result = consumer.pull(topic, queue.queue_id, offset)
                found += result.messages
                offset = result.next_begin_offset
    return found


def judge(
    messages: Sequence[ReceivedMessage],
    plans: Mapping[str, Plan],
    until_ms: int,
    outages: Iterable[tuple[int, int]] = (),
) -> Verdict:
    """Compare what was sent with the times that have passed.

    Args:
        plans: by schedule.
        until_ms: a moment before which everything was sent.
        outages: from when to when, in ms, no master was there that could send. A schedule that sends only the latest
            time may leave out one if the next one is in the outage too, or if the broker was slow: a message that was
            due before, of a schedule that sends for all times, was stored at about the next time or later.
    """
    joined = _joined(outages)
    stored = [
        (int(message.get_property("__SCHEDULE_TIME") or 0), message.store_timestamp_ms)
        for message in messages
        if (plan := plans.get(message.get_property("__SCHEDULE") or "")) and not plan.is_latest_only
    ]

    def may_leave_out(name: str, time_ms: int) -> bool:
        next_ms = time_ms + plans[name].interval_ms
        return any(begin <= time_ms and next_ms <= end for begin, end in joined) or any(
            due_ms <= time_ms + _PHASE_MS and stored_ms >= next_ms - _SLOW_MS for due_ms, stored_ms in stored
        )

    sent = Counter(
        (message.get_property("__SCHEDULE") or "", int(message.get_property("__SCHEDULE_TIME") or 0))
        for message in messages
    )
    due = {(name, time_ms) for name, plan in plans.items() for time_ms in plan.times(until_ms)}
    left_out = {
        (name, time_ms)
        for name, time_ms in due - sent.keys()
        if plans[name].is_latest_only and may_leave_out(name, time_ms)
    }
    early = [
        message.get_property("UNIQ_KEY")
        for message in messages
        if message.store_timestamp_ms < int(message.get_property("__SCHEDULE_TIME") or 0)
    ]
    missing = due - sent.keys() - left_out
    wrong = [f"{name}: nothing was sent for {time_ms}" for name, time_ms in sorted(missing)]
    wrong += [f"{name}: sent {count} times for {time}" for (name, time), count in sent.items() if count > 1]
    wrong += [
        f"{name}: sent for {time}, no time of it"
        for name, time in sent
        if name not in plans or not plans[name].has(time)
    ]
    wrong += [f"{unique_id} is stored before its time" for unique_id in early]
    late_s = sorted(
        (message.store_timestamp_ms - int(message.get_property("__SCHEDULE_TIME") or 0)) / 1000 for message in messages
    )
    return Verdict(len(due), len(left_out), late_s, wrong)


def _joined(outages: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return outages with those that overlap as one."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(outages):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined
