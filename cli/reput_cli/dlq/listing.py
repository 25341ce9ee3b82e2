"""`reput dlq list | peek | purge`: the groups that have dead letters, those of a group, and deleting them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import click

from reput_cli import rendering
from reput_cli.completion import GROUP
from reput_cli.dlq.letters import Chosen, Replayed, chosen_by, filter_option, letters_of, read, within
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer, ago_text, rfc3339, write_message
from reput_cli.positions import RangeType
from reput_cli.preview import confirm, dry_run_option
from reput_client.admin.undelivered import DeadLetter
from reput_client.blocking import Admin
from reput_client.positions import Position
from reput_protocol.commands.dead_letters import Replay
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import DLQ_PREFIX
from reput_protocol.printable import counted, printable, printable_json

_COLUMNS = ("group", "messages", "replayed", "oldest", "newest", "origins", "reasons", "attempts")


@dataclass(slots=True)
class Summary:
    """Counts and ages of the dead letters of one group."""

    group: str
    messages: int = 0
    replayed: int | None = None
    """None if it is not known."""
    oldest_ms: int | None = None
    newest_ms: int | None = None
    origins: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)

    def add(self, letter: DeadLetter) -> None:
        """Count one."""
        stored_ms = letter.message.store_timestamp_ms
        self.messages += 1
        self.oldest_ms = stored_ms if self.oldest_ms is None else min(self.oldest_ms, stored_ms)
        self.newest_ms = stored_ms if self.newest_ms is None else max(self.newest_ms, stored_ms)
        self.origins[letter.origin.topic or "unknown"] += 1
        self.reasons[letter.origin.reason] += 1
        self.attempts[letter.attempts] += 1

    def row(self, printer: Printer) -> tuple[object, ...]:
        """Return a row of the list: times are ages in a table, and counts are objects in JSON."""
        text = ago_text if printer.is_table else rfc3339
        oldest, newest = (None if ms is None else text(ms) for ms in (self.oldest_ms, self.newest_ms))
        head = (self.group, self.messages, self.replayed, oldest, newest)
        if printer.is_json:
            attempts = {str(number): count for number, count in sorted(self.attempts.items())}
            return (*head, dict(self.origins.most_common()), dict(self.reasons.most_common()), attempts)
        return (*head, _counted(self.origins), _counted(self.reasons), _span(self.attempts))


@click.command(name="list")
@click.argument("group", required=False, type=GROUP)
@filter_option
@shared_options
def list_dead_letters(settings: Settings, group: str | None, expression: str | None) -> int:
    """List the groups with dead letters, or only GROUP: their number, how many of them were replayed, origin topics,
    reasons and attempts.

    Reads every dead letter.
    """
    printer, chosen = Printer(settings), chosen_by(expression)
    with settings.admin() as admin:
        groups = [group] if group is not None else _groups(admin)
        summaries = [_summary(admin, name, chosen, Replayed(admin, name, printer)) for name in groups]
    printer.rows(_COLUMNS, [summary.row(printer) for summary in summaries if summary.messages or group])
    return ExitCode.DONE


def _groups(admin: Admin) -> list[str]:
    return [topic.removeprefix(DLQ_PREFIX) for topic in admin.list_topics() if topic.startswith(DLQ_PREFIX)]


def _summary(admin: Admin, group: str, chosen: Chosen, replayed: Replayed) -> Summary:
    summary = Summary(group)
    count = 0
    for letter in read(admin, letters_of(admin, group)):
        if chosen(letter):
            summary.add(letter)
            count += replayed.of(letter) is not None
    summary.replayed = count if replayed.is_known else None
    return summary


def _counted(numbers: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in numbers.most_common()) or "-"


def _span(attempts: Counter[int]) -> str:
    if not attempts:
        return "-"
    low, high = min(attempts), max(attempts)
    return str(low) if low == high else f"{low}-{high}"


@click.command()
@click.argument("group", type=GROUP)
@click.option(
    "-o", "--from", "span", type=RangeType(), default="earliest", show_default=True, metavar="START[:END]",
    help="earliest, an offset, -N for the last N (of each broker), @TIME, @-15m, or a range of these.",
)  # fmt: skip
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=10, show_default=True, help="At most this many."
)
@click.option("-f", "--format", "text", help="Percent escapes, as for reput consume.")
@filter_option
@shared_options
def peek(
    settings: Settings,
    group: str,
    span: tuple[Position, Position | None],
    count: int,
    text: str | None,
    expression: str | None,
) -> int:
    """Show dead letters of GROUP, oldest first: the message, its origin topic, the reason, the attempts, and when and
    to where it was replayed.
    """
    chosen = chosen_by(expression)
    with settings.admin() as admin:
        render = _renderer(settings, text, Replayed(admin, group, Printer(settings)))
        left = count
        for letter in read(admin, within(admin, letters_of(admin, group), *span)):
            if not chosen(letter):
                continue
            write_message(render(letter))
            left -= 1
            if not left:
                break
    return ExitCode.DONE


def _renderer(settings: Settings, text: str | None, replayed: Replayed) -> Callable[[DeadLetter], str]:
    if text is not None:
        of_message = rendering.compile_format(text)
        return lambda letter: of_message(letter.message)
    form = settings.output or ("table" if sys.stdout.isatty() else "json")
    render = _block if form == "table" else _plain if form == "plain" else _json_line
    return lambda letter: render(letter, replayed.of(letter))


def _json_line(letter: DeadLetter, replay: Replay | None) -> str:
    origin = letter.origin
    fields = {
        "origin_topic": origin.topic,
        "origin_message_id": origin.message_id,
        "attempts": letter.attempts,
        "reason": origin.reason,
        "cause": origin.cause,
        "replayed_at": None if replay is None else rfc3339(replay.replay_timestamp),
        "replayed_to": None if replay is None else replay.topic,
        "replayed_message_id": None if replay is None else replay.offset_message_id,
    }
    return printable_json({**json.loads(rendering.json_line(letter.message)), **fields})


def _plain(letter: DeadLetter, replay: Replay | None) -> str:
    sent = ("-", "-") if replay is None else (rfc3339(replay.replay_timestamp), replay.topic)
    origin = letter.origin
    head = (letter.message.queue_offset, origin.topic or "-", letter.attempts, origin.reason, *sent)
    # Without queue id and offset: the queue of dead letters is always 0.
    _, _, rest = rendering.plain(letter.message).split("\t", 2)
    return "\t".join([*(printable(str(value)) for value in head), rest])


def _block(letter: DeadLetter, replay: Replay | None) -> str:
    line = f"  from {letter.origin.topic or 'unknown'}  attempts {letter.attempts}  reason {letter.origin.reason}"
    if letter.origin.cause:
        line += f"  cause {letter.origin.cause}"
    lines = [printable(line)]
    if replay is not None:
        lines.append(printable(f"  replayed {rfc3339(replay.replay_timestamp)} to {replay.topic}"))
    head, _, body = rendering.block(letter.message).partition("\n")
    return "\n".join([head, *lines, body])


@click.command()
@click.argument("group", type=GROUP)
@dry_run_option
@shared_options
def purge(settings: Settings, group: str, dry_run: bool) -> int:
    """Delete all dead letters of GROUP. Asks for the group's name unless --yes is given.

    A log cannot delete single messages, so this deletes the topic %DLQ%GROUP with all dead letters, replayed or not.
    The group's next dead letter creates the topic again. Nothing is deleted if dead letters have been added since they
    were counted.
    """
    printer = Printer(settings)
    with settings.admin() as admin:
        letters = letters_of(admin, group)
        replayed = Replayed(admin, group, printer).total(letters)
        left = "" if replayed is None else f", {len(letters) - replayed} not replayed yet"
        printer.note(f"topic {letters.topic}: {counted(len(letters), 'dead letter')}{left}")
        if dry_run:
            return ExitCode.DONE
        confirm(
            settings,
            group,
            "type the group's name to delete them",
            f"the dead letters of {group} were not deleted",
            needs_terminal=True,
        )
        now = letters_of(admin, group)
        more = len(now.after({name: end for name, (_, end) in letters.spans.items()}))
        if more:
            raise CommandFailed(
                f"the dead letters of {group} were not deleted",
                reason=f"{counted(more, 'more has', 'more have')} been added since they were counted",
                remedy=f"reput dlq peek {group} -o -{more}, then purge again",
            )
        admin.delete_topic(letters.topic)
    printer.note(f"topic {letters.topic} deleted")
    return ExitCode.DONE
