"""`reput produce`: send an argument, a file, or each line of standard input."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import click

from reput_cli.completion import TOPIC
from reput_cli.failures import CommandFailed, worded
from reput_cli.options import DURATION, Settings, properties_of, sent_message_options, shared_options
from reput_cli.output import Printer, duration_text
from reput_cli.positions import TIME
from reput_client.blocking import Message, Producer
from reput_client.errors import PartlySent, PostsFailed, SendOutcomeUnknown
from reput_client.receipts import Posted, SendReceipt
from reput_protocol.codes import Ack
from reput_protocol.errors import InvalidMessage, ReputError
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted
from reput_protocol.record.delays import ExpiryOptions, take_expiry
from reput_protocol.record.forwarding import own_properties
from reput_protocol.record.message_fields import body_of

_READ_BYTES = 1 << 16
_BLOCK_BYTES = 16 << 10
"""A block must fit into one log file, which may be small."""
_SENT_ALONE = ("delay_s", "delay_level", "deliver_at", "priority", "ttl_s")


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("body", required=False)
@sent_message_options
@click.option("--queue", "queue_id", type=int, help="Queue to send to; default: round robin.")
@click.option("--ack", type=click.Choice(["page_cache", "flushed", "replicated"]), default="flushed", show_default=True)
@click.option("--ordering-key", help="Messages with the same ordering key go to the same queue, in order.")
@click.option(
    "--deduplicate/--no-deduplicate",
    default=True,
    show_default=True,
    help="Repeat sends that get no response, until --timeout; the broker stores each once.",
)
@click.option("--delay", type=DURATION, help="Deliver after this time: 500ms, 5m, 2h.")
@click.option("--delay-level", type=click.IntRange(1, 18), help="Deliver after the delay of this RocketMQ level.")
@click.option("--at", type=TIME, help="Deliver at this time: 2026-01-02T03:04:05Z.")
@click.option("--priority", type=click.IntRange(0), help="Popped before lower ones in a topic of the type PRIORITY.")
@click.option("--ttl", type=DURATION, help="Not delivered any more after this time: 30s, 5m, 2h.")
@click.option("--file", "path", type=click.Path(path_type=Path), help="Send this file as one message.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Each line of the input is an object: body, body_base64, tag, keys, properties. For JSON on "
    "the output: -O json.",
)
@partial(shared_options, json_flag=False)
def command(
    settings: Settings,
    topic: str,
    body: str | None,
    keys: tuple[str, ...],
    tag: str | None,
    properties: tuple[str, ...],
    queue_id: int | None,
    ack: Ack,
    ordering_key: str | None,
    deduplicate: bool,
    delay: float | None,
    delay_level: int | None,
    at: int | None,
    priority: int | None,
    ttl: float | None,
    path: Path | None,
    as_json: bool,
) -> int:
    """Send messages to TOPIC.

    With BODY or --file, sends one message. Otherwise every line of standard input is sent as a message, as soon as it
    is read.
    """
    if body is not None and path is not None:
        raise CommandFailed("a body and --file were both given", remedy="one of them", code=ExitCode.USAGE)
    if queue_id is not None and ordering_key is not None:
        raise CommandFailed(
            "--queue and --ordering-key were both given",
            remedy="one of them: the key chooses the queue",
            code=ExitCode.USAGE,
        )
    template: dict[str, Any] = {"tag": tag, "keys": keys, "properties": properties_of(properties)}
    template |= {"delay_s": delay, "delay_level": delay_level, "priority": priority, "ttl_s": ttl}
    template["deliver_at"] = None if at is None else datetime.fromtimestamp(at / 1000, UTC)
    one = None
    if body is not None or path is not None:
        data = _read_file(path) if path is not None else str(body).encode("utf-8", "surrogateescape")
        one = _message(topic, data, template, as_json)
    printer = Printer(settings)
    late_s = 0.0 if at is None else time.time() - at / 1000
    if late_s > 0:
        printer.note(f"--at is {duration_text(late_s)} ago: consumers get the messages immediately")
    with Producer(
        settings.server,
        group="reput-cli",
        timeout_s=settings.timeout_s,
        tls=settings.tls,
        deduplicate=deduplicate,
        retries=None if deduplicate else 0,
        batch_bytes=_BLOCK_BYTES,
    ) as producer:
        if one is not None:
            receipt = producer.send(one, ack=ack, queue_id=queue_id, ordering_key=ordering_key)
            _print_receipt(printer, receipt)
            return ExitCode.DONE
        if sys.stdin.isatty():
            printer.note("one message per line; Ctrl-D ends")

        def send(messages: list[Message]) -> None:
            receipts = _post(producer, messages, {"ack": ack, "queue_id": queue_id, "ordering_key": ordering_key})
            add(len(receipts))
            if settings.output:
                for receipt in receipts:
                    _print_receipt(printer, receipt)

        with printer.counting("messages sent") as add:
            count = _send_lines(lambda line: _message(topic, line, template, as_json), send)
        printer.note(f"{counted(count, 'message')} sent to {topic} ({ack})")
    return ExitCode.DONE


def _post(producer: Producer, messages: list[Message], options: dict[str, Any]) -> list[SendReceipt]:
    """Send the messages in blocks, and return their receipts. Raises `PartlySent` if any failed."""
    posted: list[Posted] = []
    errors: dict[int, ReputError] = {}
    for message in messages:
        try:
            posted.append(producer.post(message, **options))
        except ReputError as error:
            errors[len(posted)] = error
            break
    with suppress(PostsFailed):
        producer.flush()
    errors |= {number: each.error for number, each in enumerate(posted) if each.error is not None}
    if errors:
        done = [None if number in errors else each.result() for number, each in enumerate(posted)]
        raise PartlySent(done + [None] * (len(messages) - len(done)), errors)
    return [each.result() for each in posted]


def _send_lines(parse: Callable[[bytes], Message], send: Callable[[list[Message]], None]) -> int:
    """Send every line of standard input and return their number. A failure names its line."""
    count = 0
    for lines in _line_batches():
        messages: list[Message] = []
        unfit: CommandFailed | InvalidMessage | None = None
        for line in lines:
            try:
                messages.append(parse(line))
            except (CommandFailed, InvalidMessage) as error:
                unfit = error
                break
        try:
            send(messages)
        except PartlySent as error:
            stored = {number for number, receipt in enumerate(error.receipts) if receipt is not None}
            first, last = min(error.errors, default=0), max({0, *error.errors, *stored})
            raise _failed_at(
                count + first + 1, count + len(stored), error.errors.get(first, error), last=count + last + 1
            ) from error
        except ReputError as error:
            raise _failed_at(count + 1, count, error) from error
        count += len(messages)
        if unfit is not None:
            raise _failed_at(count + 1, count, unfit)
    return count


def _failed_at(line: int, stored: int, error: Exception, *, last: int = 0) -> CommandFailed:
    """Return a failure with its line and the number of messages stored.

    Args:
        last: the last line that was sent; those after the failure may be stored or not.
    """
    failure = worded(error)
    done = f"{counted(stored, 'message is', 'messages are')} stored"
    remedy = failure.remedy
    if last > line and stored >= line:
        before = f"all before line {line}, and " if line > 1 else ""
        done += f": {before}at least {stored - line + 1} of lines {line} to {last}"
    elif remedy is None:
        remedy = f"correct line {line}, and send it and the lines after it again"
    if isinstance(error, SendOutcomeUnknown):
        remedy = (
            f"{remedy}; without --no-deduplicate the command repeats such sends until --timeout, which can be longer"
        )
    return CommandFailed(
        f"line {line}: {failure.what}; {done}", reason=failure.reason, remedy=remedy, code=failure.code
    )


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandFailed(f"cannot read {path}", reason=error.strerror, code=ExitCode.USAGE) from error


def _message(topic: str, data: bytes, template: dict[str, Any], as_json: bool) -> Message:
    if not as_json:
        return Message(topic, data, **template)
    try:
        fields = json.loads(data)
        _check_fields(fields)
        own, expiry = _own_properties(fields, template)
        return Message(
            topic,
            body_of(fields),
            tag=fields.get("tag") or template["tag"],
            keys=[*template["keys"], *(fields.get("keys") or ())],
            properties={**template["properties"], **own},
            **{**{name: template[name] for name in _SENT_ALONE}, **expiry},
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CommandFailed(
            f"this line is not a message: {data[:80]!r}",
            reason=f"{type(error).__name__}: {error}",
            remedy='{"body": "text", "tag": "...", "keys": ["..."], "properties": {"name": "value"}}',
            code=ExitCode.USAGE,
        ) from error


def _check_fields(fields: Any) -> None:
    if not isinstance(fields, dict):
        raise TypeError("it is not a JSON object")
    for name, value in fields.items():
        if name not in _FIELDS and name not in _FIELDS_OF_STORED:
            near = get_close_matches(name, _FIELDS, 1)
            raise ValueError(f"unknown field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        kind = _FIELDS.get(name)
        if kind is not None and value is not None and not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, not {value!r:.40}")
    if fields.get("body_base64", fields.get("body")) is None:
        raise ValueError("it has neither body nor body_base64")
    if not all(isinstance(key, str) for key in fields.get("keys") or ()):
        raise TypeError("keys must be a list of strings")


_FIELDS = {"body": str, "body_base64": str, "tag": str, "keys": list, "properties": dict}
# Ignored, so that output of `reput consume -O json` can be sent again.
_FIELDS_OF_STORED = frozenset(
    ("topic", "queue_id", "queue_offset", "message_id", "offset_message_id", "store_timestamp_ms", "born_timestamp_ms")
)


def _own_properties(fields: dict[str, Any], template: dict[str, Any]) -> tuple[dict[str, str], ExpiryOptions]:
    """Return the properties of a line without those that hold tag, keys and id, and when its message expires.

    A message that was received is sent again without the properties of its delivery, and it expires as it did, unless
    `template` says when.
    """
    properties: dict[str, str] = fields.get("properties") or {}
    expiry: ExpiryOptions = {}
    if _FIELDS_OF_STORED.issubset(fields):
        properties = own_properties(properties)
        expiry = take_expiry(properties)
        if template["ttl_s"] is not None:
            expiry = {}
    own = {name: value for name, value in properties.items() if name not in ("TAGS", "KEYS", "UNIQ_KEY", "WAIT")}
    return own, expiry


def _line_batches() -> Iterator[list[bytes]]:
    """Yield the complete lines of each read of standard input, without newlines; then the rest."""
    rest = b""
    while chunk := os.read(sys.stdin.fileno(), _READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _print_receipt(printer: Printer, receipt: SendReceipt) -> None:
    printer.fields(
        {
            "topic": receipt.topic,
            "queue_id": receipt.queue_id,
            "queue_offset": receipt.queue_offset,
            "message_id": receipt.message_id,
            "offset_message_id": receipt.offset_message_id,
            "store_timestamp_ms": receipt.store_timestamp_ms,
            "ack": str(receipt.ack),
        }
    )
