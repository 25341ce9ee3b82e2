"""`reput consume`: print the messages of a topic, without a group or as a member of one."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
import click
from anyio.streams.memory import MemoryObjectSendStream

from reput_cli import rendering
from reput_cli.completion import GROUP, TOPIC
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_cli.output import say, write_message
from reput_cli.positions import RangeType
from reput_client import Consumer, PullConsumer
from reput_client.blocking import Admin
from reput_client.consume.pull import MessageSelector
from reput_client.errors import ConnectFailed, ConnectionLost, DamagedMessage, RequestTimeout, StoreUnavailable
from reput_client.positions import Position
from reput_client.received import ReceivedMessage
from reput_client.serialize.decoders import Decode, body_decoder, registry_credentials
from reput_protocol.commands.topic import TopicConfig
from reput_protocol.errors import GroupNotFound, PermissionDenied, ReputError, TopicNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.record.message import MessageQueue

_WAIT_S = 10.0
_PULL_MESSAGES = 256
_RETRY_S = 0.5
_TAKE_S = 0.25
"""Seconds that a group member waits for a message before it checks the connection and the ends of its queues."""
_COMMIT_INTERVAL_S = 1.0
_NO_GROUP = "TOOLS_CONSUMER"
"""The group of RocketMQ's tools, which always exists."""
_Spans: TypeAlias = dict[MessageQueue, tuple[int, int | None]]
_Batch: TypeAlias = list[ReceivedMessage]
_AWAY = (ConnectFailed, ConnectionLost, RequestTimeout, StoreUnavailable)
"""The last of a broker that starts or stops."""


class TagsType(click.ParamType[str]):
    """Tags joined by `||`, or `*`."""

    name = "tags"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the expression. An empty tag is refused: RocketMQ would ignore it silently."""
        text = str(value)
        if not all(part.strip() for part in text.split("||")):
            self.fail(f"{text!r} has an empty tag; write tags joined by ||, such as 'a || b'", param, ctx)
        return text


class DecodeType(click.ParamType[Decode]):
    """The form of bodies, as `body_decoder` takes it."""

    name = "form"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decode:
        """Return the function from a body to a value for JSON."""
        try:
            return body_decoder(str(value), credentials=registry_credentials())
        except (ModuleNotFoundError, OSError, ValueError) as error:
            return self.fail(f"{value!r}: {error}", param, ctx)


@click.command()
@click.argument("topic", type=TOPIC)
@click.option(
    "-g",
    "--group",
    type=GROUP,
    help="Consume as a member of this group and commit its progress.  [default: commit nothing]",
)
@click.option(
    "-o", "--from", "span", type=RangeType(), default="earliest", show_default=True, metavar="START[:END]",
    help="earliest, latest, an offset, -N (of each queue), @TIME, @-15m, or a range of these. A group's committed "
    "offset takes precedence.",
)  # fmt: skip
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only this queue, without --group.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("-e", "--end", "to_end", is_flag=True, help="Stop at the messages stored when the command started.")
@click.option(
    "-f",
    "--format",
    "text",
    help="%t topic, %q queue, %o offset, %i id, %I offset id, %k keys, %T tag, %v body, %s size, %d store time, "
    r"%h properties, %% percent; %v{hex}, %v{base64}, %v{json}; \n, \t.",
)
@click.option("--tag", type=TagsType(), default="*", help="Only these tags, such as 'a || b'.")
@click.option(
    "--sql", help="Only messages whose properties match this SQL92 expression, such as \"a > 5 AND b = 'x'\"."
)
@click.option(
    "--decode",
    type=DecodeType(),
    metavar="FORM",
    help="Print bodies as JSON: json, msgpack, avro:FILE of a schema, protobuf:FILE:MESSAGE with a file of protoc "
    "--descriptor_set_out, or registry:URL of a schema registry. A body that is not of this form is printed as it "
    "is, with the reason.",
)
@click.option("--no-wait", is_flag=True, help="Fail if TOPIC does not exist, instead of waiting for it.")
@click.option(
    "--force", is_flag=True, help="Join GROUP even if its members read TOPIC with another filter; messages are lost."
)
@shared_options
def command(
    settings: Settings,
    topic: str,
    group: str | None,
    span: tuple[Position, Position | None],
    queue_id: int | None,
    count: int | None,
    to_end: bool,
    text: str | None,
    tag: str,
    sql: str | None,
    decode: Decode | None,
    no_wait: bool,
    force: bool,
) -> int:
    """Print the messages of TOPIC and wait for more.

    Prints readable blocks on a terminal and JSON lines on a pipe. Ctrl-C ends it; with --group, printed messages are
    committed. Unless the range has an end, it waits for a TOPIC that does not exist yet and for an
    unavailable broker. Damaged messages are reported on stderr and skipped; the exit code is then 7.
    """
    if sql is not None and tag != "*":
        raise click.UsageError("--tag and --sql exclude each other; in an expression the tag is the property TAGS")
    if queue_id is not None and group is not None:
        raise click.UsageError("--queue and --group exclude each other: the broker assigns queues to a group's members")
    render = _renderer(settings, text)
    start, end = span
    with settings.admin() as admin:
        try:
            configs = admin.topic_configs(topic)
        except TopicNotFound:
            if no_wait or to_end or end is not None:
                raise
            configs = _wait_for_topic(settings, admin, topic)
            start = Position(word="earliest") if start.word == "latest" else start
        queues = [
            MessageQueue(topic, name, number)
            for name, config in configs.items()
            for number in range(config.read_queue_nums)
            if queue_id in (None, number)
        ]
        if not queues and queue_id is not None:
            raise click.BadParameter(
                f"topic {topic} has the queues 0 to {max(config.read_queue_nums for config in configs.values()) - 1}",
                param_hint="--queue",
            )
        end = Position(word="latest") if to_end and end is None else end
        if group is not None:
            _check_filter(admin, group, topic, MessageSelector.of(tag, sql), force=force)
        spans = {}
        for queue in queues:
            place = (topic, queue.queue_id, queue.broker_name)
            spans[queue] = (start.resolve(admin, *place), end.resolve(admin, *place) if end else None)
    reading = settings, topic, tag, sql, render, decode, count, end is None
    follower = _Follower(*reading) if group is None else _GroupFollower(*reading, group=group)
    if anyio.run(_run_until_interrupted, follower.run, spans):
        raise KeyboardInterrupt
    return ExitCode.DAMAGE if follower.has_met_damage else ExitCode.DONE


def _check_filter(admin: Admin, group: str, topic: str, wanted: MessageSelector, *, force: bool) -> None:
    """Refuse another filter than that of the group's members: each of its messages would be read with either."""
    try:
        subscriptions = admin.describe_group(group, topic).subscriptions
    except (GroupNotFound, PermissionDenied):
        return  # new, or it may only be consumed
    for theirs in subscriptions:
        same_kind = theirs.expression_type == wanted.expression_type
        if theirs.topic == topic and not (same_kind and _parts(theirs.sub_string) == _parts(wanted.expression)):
            what = (
                f"the members of group {group} read {topic} with the filter {theirs.sub_string!r}, this one with "
                f"{wanted.expression!r}"
            )
            loss = "messages that only one filter matches are lost to the group"
            if force:
                say(f"{what}: {loss}")
                return
            raise CommandFailed(
                what,
                reason=f"{loss}; nothing was read",
                remedy="a separate group: --group NAME, or the filter of the others; --force joins nevertheless",
            )


def _parts(expression: str) -> set[str]:
    return {part.strip() for part in expression.split("||")}


def _wait_for_topic(settings: Settings, admin: Admin, topic: str) -> dict[str, TopicConfig]:
    """Return the settings of a topic by broker once it exists."""
    if not settings.quiet:
        say(f"topic {topic!r} does not exist yet; waiting for it (--no-wait fails instead)")
    while True:
        time.sleep(_RETRY_S)
        with contextlib.suppress(TopicNotFound, *_AWAY):
            return admin.topic_configs(topic)


def _renderer(settings: Settings, text: str | None) -> Callable[[ReceivedMessage], str]:
    if text is not None:
        return rendering.compile_format(text)
    return rendering.renderer(settings)


async def _run_until_interrupted(run: Callable[[_Spans], Awaitable[None]], spans: _Spans) -> bool:
    """Run, and return whether Ctrl-C ended it; a group member then still commits what it has printed."""
    interrupted = False
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            nonlocal interrupted
            with anyio.open_signal_receiver(signal.SIGINT) as signals:
                async for _ in signals:
                    interrupted = True
                    tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        await run(spans)
        tasks.cancel_scope.cancel()
    return interrupted


@dataclass(slots=True)
class _Reading:
    """What is read, and how it is printed."""

    settings: Settings
    topic: str
    tags: str
    sql: str | None
    render: Callable[[ReceivedMessage], str]
    decode: Decode | None
    remaining: int | None
    patient: bool
    """Whether to wait for a broker that is away."""
    has_met_damage: bool = False

    def print_one(self, message: ReceivedMessage) -> None:
        """Print a message, or report its damage on stderr."""
        try:
            _ = message.raw_body  # checks the CRC even if the format does not print the body
            write_message(self.render(message))
        except DamagedMessage as error:
            say(f"{error}; skipped")
            self.has_met_damage = True
        if self.remaining is not None:
            self.remaining -= 1


@dataclass(slots=True)
class _Follower(_Reading):
    """Reads all queues of a topic concurrently and prints their messages; commits nothing."""

    _away: bool = False

    async def run(self, spans: _Spans) -> None:
        """Read each queue from its start to its end; without an end, forever."""
        send, receive = anyio.create_memory_object_stream[_Batch](1)
        async with (
            PullConsumer(
                self.settings.server,
                group=_NO_GROUP,
                timeout_s=self.settings.timeout_s,
                tls=self.settings.tls,
                deserializer=self.decode,
            ) as consumer,
            anyio.create_task_group() as readers,
        ):
            for queue, (start, end) in spans.items():
                readers.start_soon(self._read_queue, consumer, queue, start, end, send.clone())
            send.close()
            async with receive:
                async for batch in receive:
                    self._print(batch)
                    if self.remaining == 0:
                        break
                # Before the stream is closed: a reader that is sending would otherwise raise.
                readers.cancel_scope.cancel()

    async def _read_queue(
        self,
        consumer: PullConsumer,
        queue: MessageQueue,
        start: int,
        end: int | None,
        out: MemoryObjectSendStream[_Batch],
    ) -> None:
        offset = start
        async with out:
            while end is None or offset < end:
                try:
                    result = await consumer.pull(
                        self.topic,
                        queue_id=queue.queue_id,
                        broker_name=queue.broker_name,
                        offset=offset,
                        tags=self.tags,
                        sql=self.sql,
                        max_messages=_PULL_MESSAGES,
                        wait_s=_WAIT_S if end is None else 0.0,
                        read_ahead=True,
                    )
                except _AWAY as error:
                    if end is not None:
                        raise
                    await self._wait_for_the_broker(error)
                    continue
                self._away = False
                messages = [message for message in result.messages if end is None or message.queue_offset < end]
                offset = result.next_begin_offset if end is None else min(result.next_begin_offset, end)
                await out.send(messages)

    def _print(self, batch: _Batch) -> None:
        for message in batch:
            self.print_one(message)
            if self.remaining == 0:
                return

    async def _wait_for_the_broker(self, error: ReputError) -> None:
        if not self._away and not self.settings.quiet:
            say(f"{error}; waiting until it is back")
        self._away = True
        await anyio.sleep(_RETRY_S)


@dataclass(slots=True)
class _GroupFollower(_Reading):
    """Prints the messages that this member of a group is assigned; a printed message counts as consumed."""

    group: str = field(kw_only=True)

    async def run(self, spans: Mapping[MessageQueue, tuple[int, int | None]]) -> None:
        """Read the assigned queues from the group's offsets, else from their starts, to their ends."""
        # The client's log would repeat what this command prints.
        logging.getLogger("reput_client").addHandler(logging.NullHandler())

        def start(queue: MessageQueue) -> int:
            return spans.get(queue, (0, None))[0]

        async with Consumer(
            self.settings.server,
            group=self.group,
            topic=self.topic,
            tags=self.tags,
            sql=self.sql,
            start=start,
            commit_interval_s=_COMMIT_INTERVAL_S,
            timeout_s=self.settings.timeout_s,
            tls=self.settings.tls,
            deserializer=self.decode,
        ) as consumer:
            ends = {queue: end for queue, (_, end) in spans.items() if end is not None}
            while self.remaining != 0:
                message = await consumer.take(_TAKE_S)
                if message is not None:
                    self._print(message, ends)
                elif self._is_over(consumer, ends):
                    return
                elif not consumer.connected:
                    await self._wait_for_the_broker(consumer)

    def _print(self, message: ReceivedMessage, ends: Mapping[MessageQueue, int]) -> None:
        end = ends.get(message.queue)
        if end is not None and message.queue_offset >= end:
            return  # not done, so that its offset is not committed
        self.print_one(message)
        message.ack()

    def _is_over(self, consumer: Consumer, ends: Mapping[MessageQueue, int]) -> bool:
        if self.patient or not consumer.connected:
            return False
        return all(position >= ends.get(queue, 0) for queue, position in consumer.positions().items())

    async def _wait_for_the_broker(self, consumer: Consumer) -> None:
        """Wait for the connection; meanwhile print the messages that the consumer still holds."""
        lost = ConnectionLost(self.settings.server, "the broker closed it")
        if not self.patient:
            raise lost
        if not self.settings.quiet:
            say(f"{lost}; waiting until it is back")
        while not consumer.connected and not consumer.closed:
            message = await consumer.take(_TAKE_S)
            if message is not None:
                self._print(message, {})
