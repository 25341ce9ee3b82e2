"""`reput request`: send a request and print the reply."""

from __future__ import annotations

import sys

import click

from reput_cli import rendering
from reput_cli.completion import TOPIC
from reput_cli.options import Settings, properties_of, sent_message_options, shared_options
from reput_cli.output import write_line, write_message
from reput_client.blocking import Message, Producer
from reput_client.received import ReceivedMessage
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import printable_body


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("body", required=False)
@sent_message_options
@click.option("--queue", "queue_id", type=int, help="Queue to send to; default: any.")
@shared_options
def command(
    settings: Settings,
    topic: str,
    body: str | None,
    keys: tuple[str, ...],
    tag: str | None,
    properties: tuple[str, ...],
    queue_id: int | None,
) -> int:
    """Send a request to TOPIC and print the body of the reply; -O json prints the whole reply.

    Without BODY, the body is read from standard input. --timeout limits the wait for the reply.
    """
    data = sys.stdin.buffer.read() if body is None else body.encode("utf-8", "surrogateescape")
    message = Message(topic, data, tag, keys, properties_of(properties))
    with Producer(settings.server, group="reput-cli", timeout_s=settings.timeout_s, tls=settings.tls) as producer:
        _print(settings, producer.request(message, queue_id=queue_id))
    return ExitCode.DONE


def _print(settings: Settings, reply: ReceivedMessage) -> None:
    if settings.output in ("json", "jsonl"):
        write_message(rendering.json_line(reply))
    elif settings.output == "plain":
        write_message(rendering.plain(reply))
    elif sys.stdout.isatty():
        write_line(printable_body(reply.body))
    else:
        end = b"" if reply.body.endswith(b"\n") else b"\n"
        sys.stdout.buffer.write(reply.body + end)
