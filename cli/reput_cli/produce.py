"""`reput produce`: a message from the argument or a file, or one message a line from standard input."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from reput_cli.exit_codes import ExitCode
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_client.blocking import Message, Producer
from reput_client.receipts import SendReceipt

_READ_BYTES = 1 << 16


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option("-k", "--key", "keys", multiple=True, help="Key to find the message by; repeatable.")
@click.option("-t", "--tag", help="Tag to filter by.")
@click.option(
    "-p", "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Property; repeatable."
)
@click.option("--queue", "queue_id", type=int, help="Queue to send to; the queues in turn if not given.")
@click.option(
    "--ack", type=click.Choice(["page_cache", "flushed", "replicated"]), default="flushed", show_default=True
)
@click.option(
    "--file", "path", type=click.Path(path_type=Path, dir_okay=False), help="Send this file as one message."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Each line is an object: body, body_base64, tag, keys, properties.",
)
@shared_options
def command(
    settings: Settings,
    topic: str,
    body: str | None,
    keys: tuple[str, ...],
    tag: str | None,
    properties: tuple[str, ...],
    queue_id: int | None,
    ack: str,
    path: Path | None,
    as_json: bool,
) -> int:
    """Send messages to TOPIC.

    With BODY or --file, one message. Without, every line of standard input is a message, sent as soon as it is read.
    """
    if body is not None and path is not None:
        raise CommandFailed("a body and --file were both given", remedy="one of them", code=ExitCode.USAGE)
    template: dict[str, Any] = {"tag": tag, "keys": keys, "properties": _parse_properties(properties)}
    printer = Printer(settings)
    with Producer(settings.server, group="reput-cli", timeout_s=settings.timeout_s) as producer:
        if body is not None or path is not None:
            data = _read_file(path) if path is not None else str(body).encode("utf-8", "surrogateescape")
            receipt = producer.send(_message(topic, data, template, as_json), ack=ack, queue_id=queue_id)
            _print_receipt(printer, receipt)
            return ExitCode.DONE
        count = 0
        if sys.stdin.isatty():
            printer.note("one message a line; Ctrl-D ends")
        for lines in _line_batches():
            messages = [_message(topic, line, template, as_json) for line in lines]
            for receipt in producer.send_pipelined(messages, ack=ack, queue_id=queue_id):
                count += 1
                if settings.output:
                    _print_receipt(printer, receipt)
        printer.note(f"{count} message{'s' * (count != 1)} sent to {topic} ({ack})")
    return ExitCode.DONE


def _parse_properties(texts: tuple[str, ...]) -> dict[str, str]:
    properties = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandFailed(
                f"property {text!r} has no value", remedy="-p NAME=VALUE", code=ExitCode.USAGE
            )
        properties[name] = value
    return properties


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
        body = base64.b64decode(fields["body_base64"]) if "body_base64" in fields else fields["body"].encode()
        return Message(
            topic,
            body,
            tag=fields.get("tag") or template["tag"],
            keys=[*template["keys"], *fields.get("keys", ())],
            properties={**template["properties"], **_own_properties(fields.get("properties", {}))},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandFailed(
            f"this line is no message: {data[:80]!r}",
            reason=f"{type(error).__name__}: {error}",
            remedy='{"body": "text", "tag": "...", "keys": ["..."], "properties": {"name": "value"}}',
            code=ExitCode.USAGE,
        ) from error


def _own_properties(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties a user set: what `reput consume` prints holds some that belong to the message itself."""
    return {
        name: value for name, value in properties.items() if name not in ("TAGS", "KEYS", "UNIQ_KEY", "WAIT")
    }


def _line_batches() -> Iterator[list[bytes]]:
    """Yield the lines of standard input as they come: all whole ones of each read, the last without its newline."""
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
