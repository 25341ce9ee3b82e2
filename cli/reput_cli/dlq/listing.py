"""`reput dlq list`: which groups have dead letters, how many, of what topics and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import click

from reput_cli.dlq.letters import (
    READER_GROUP,
    Chosen,
    DeadLetter,
    bounds_of,
    chosen_by,
    filter_option,
    read_letters,
)
from reput_cli.message_lines import rfc3339
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_client.blocking import Admin, PullConsumer
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import DLQ_PREFIX

_COLUMNS = ("group", "messages", "oldest", "newest", "origins", "reasons", "attempts")


@dataclass(slots=True)
class Summary:
    """What the dead letters of one group have in common."""

    group: str
    messages: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    origins: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)

    def add(self, letter: DeadLetter) -> None:
        """Take one into account."""
        stored_ms = letter.message.store_timestamp_ms
        self.messages += 1
        self.oldest_ms = stored_ms if self.oldest_ms is None else min(self.oldest_ms, stored_ms)
        self.newest_ms = stored_ms if self.newest_ms is None else max(self.newest_ms, stored_ms)
        self.origins[letter.origin_topic or "unknown"] += 1
        self.reasons[letter.reason] += 1
        self.attempts[letter.attempts] += 1

    def row(self, *, as_json: bool) -> tuple[object, ...]:
        """Return one row of the list: tables as texts for people, as objects for JSON."""
        head = (self.group, self.messages, _time(self.oldest_ms), _time(self.newest_ms))
        if as_json:
            attempts = {str(number): count for number, count in sorted(self.attempts.items())}
            return (*head, dict(self.origins.most_common()), dict(self.reasons.most_common()), attempts)
        return (*head, _counted(self.origins), _counted(self.reasons), _span(self.attempts))


@click.command(name="list")
@click.argument("group", required=False)
@filter_option
@shared_options
def list_dead_letters(settings: Settings, group: str | None, expression: str | None) -> int:
    """List the groups with dead letters, or only GROUP: how many, from which topics, why, after how many attempts.

    Every dead letter is read for it.
    """
    printer, chosen = Printer(settings), chosen_by(expression)
    with (
        Admin(settings.server, timeout_s=settings.timeout_s) as admin,
        PullConsumer(settings.server, group=READER_GROUP, timeout_s=settings.timeout_s) as consumer,
    ):
        groups = [group] if group is not None else _groups(admin)
        summaries = [_summary(admin, consumer, name, chosen) for name in groups]
    printer.rows(
        _COLUMNS, [summary.row(as_json=printer.is_json) for summary in summaries if summary.messages or group]
    )
    return ExitCode.DONE


def _groups(admin: Admin) -> list[str]:
    return [topic.removeprefix(DLQ_PREFIX) for topic in admin.list_topics() if topic.startswith(DLQ_PREFIX)]


def _summary(admin: Admin, consumer: PullConsumer, group: str, chosen: Chosen) -> Summary:
    topic, start, end = bounds_of(admin, group)
    summary = Summary(group)
    for letter in read_letters(consumer, topic, start, end):
        if chosen(letter):
            summary.add(letter)
    return summary


def _time(timestamp_ms: int | None) -> str | None:
    return None if timestamp_ms is None else rfc3339(timestamp_ms)


def _counted(numbers: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in numbers.most_common()) or "-"


def _span(attempts: Counter[int]) -> str:
    if not attempts:
        return "-"
    low, high = min(attempts), max(attempts)
    return str(low) if low == high else f"{low}-{high}"
