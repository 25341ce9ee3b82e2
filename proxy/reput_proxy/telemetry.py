"""Telemetry, Heartbeat and NotifyClientTermination: what clients say of themselves, and the settings that they get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration

from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.names import check_client_group, check_topic
from reput_protocol.record.delays import DELAY_LEVELS_MS
from reput_proxy import log
from reput_proxy import messaging_pb2 as pb
from reput_proxy.clients import Stream
from reput_proxy.messages import ATTEMPTS_MAX, BODY_BYTES_MAX, duration_of
from reput_proxy.proxy import Call
from reput_proxy.receiving import WAIT_MAX_S
from reput_proxy.rejections import Code, Rejected, check_name, decoded, ok

_TOPICS_MAX: Final = 1000
_RECEIVE_BATCH: Final = 32
_SEND_ATTEMPTS: Final = 3
_NODE_JS: Final = 8
"""Its number among the languages of clients."""


async def telemetry(call: Call, requests: AsyncIterator[pb.TelemetryCommand]) -> AsyncIterator[pb.TelemetryCommand]:
    """Serve a Telemetry stream until the client, or the proxy, ends it."""
    call.check_client_id()
    call.proxy.check_stays()
    clients = call.proxy.clients
    stream = Stream(call.client_key)
    clients.add(stream)
    reader = asyncio.ensure_future(_read(call, stream, requests))
    try:
        while (command := await stream.outbox.get()) is not None:
            yield command
        if reader.done():
            reader.result()  # raises what the client has done wrong
    finally:
        reader.cancel()
        clients.remove(stream)
        if stream.is_push_consumer and not call.proxy.draining:
            call.proxy.give_back_unless_back(stream.client)


async def _read(call: Call, stream: Stream, requests: AsyncIterator[pb.TelemetryCommand]) -> None:
    """Handle what a client writes; its answers to commands other than settings are ignored."""
    try:
        async for command in requests:
            if decoded(command).WhichOneof("command") == "settings":
                settings = await _settings(call, stream, command.settings)
                await stream.outbox.put(pb.TelemetryCommand(status=ok(), settings=settings))
    finally:
        stream.post(None)


async def _settings(call: Call, stream: Stream, given: pb.Settings) -> pb.Settings:
    """Return a client's settings with what the proxy decides."""
    settings = pb.Settings()
    settings.CopyFrom(given)
    settings.metric.CopyFrom(pb.Metric(on=False))
    match given.WhichOneof("pub_sub"):
        case "publishing":
            topics = tuple(dict.fromkeys(topic.name for topic in given.publishing.topics))[:_TOPICS_MAX]
            for topic in topics:
                check_name(check_topic, topic, Code.ILLEGAL_TOPIC)
            call.proxy.clients.produces_to(stream, topics)
            # Not awaited: with a broker that is away it would take seconds for each topic.
            call.proxy.spawn(call.upstream.transactions.producer_connected(topics))
            settings.backoff_policy.CopyFrom(
                pb.RetryPolicy(
                    max_attempts=_SEND_ATTEMPTS,
                    exponential_backoff=pb.ExponentialBackoff(
                        initial=duration_of(10), max=duration_of(1000), multiplier=2.0
                    ),
                )
            )
            settings.publishing.validate_message_type = True
            settings.publishing.max_body_size = BODY_BYTES_MAX
        case "subscription":
            group = given.subscription.group.name
            check_name(check_client_group, group, Code.ILLEGAL_CONSUMER_GROUP)
            stream.is_push_consumer = given.client_type == pb.PUSH_CONSUMER
            config = await call.upstream.groups.get(group) or SubscriptionGroupConfig(group)
            settings.subscription.fifo = config.consume_message_orderly
            settings.subscription.receive_batch_size = _RECEIVE_BATCH
            settings.subscription.long_polling_timeout.CopyFrom(Duration(seconds=int(WAIT_MAX_S)))
            is_node = given.user_agent.language == _NODE_JS
            settings.backoff_policy.CopyFrom(retry_policy(config, only_exponential=is_node))
        case _:
            raise Rejected(Code.BAD_REQUEST, "settings are those of a producer or of a consumer")
    return settings


def retry_policy(config: SubscriptionGroupConfig, *, only_exponential: bool = False) -> pb.RetryPolicy:
    """Return when a group's messages are redelivered, by its setting `groupRetryPolicy`.

    A policy that cannot be read, which any tool may have stored, is the one of a group that has none. RocketMQ's client
    for Node knows no list of delays, and makes a message that fails once a dead letter; it gets the delays that double
    from the first of the list to the last.
    """
    try:
        return _policy_of(config, config.group_retry_policy, only_exponential)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        log.warning("retry_policy_unreadable", group=config.group_name, error=str(error))
        return _policy_of(config, {}, only_exponential)


def _policy_of(config: SubscriptionGroupConfig, given: Mapping[str, Any], only_exponential: bool) -> pb.RetryPolicy:
    policy = pb.RetryPolicy(max_attempts=min(config.retry_max_times + 1, ATTEMPTS_MAX))
    if str(given.get("type")) == "EXPONENTIAL":
        steps: dict[str, Any] = given.get("exponentialRetryPolicy") or {}
        policy.exponential_backoff.initial.CopyFrom(duration_of(int(steps.get("initial", 5000))))
        policy.exponential_backoff.max.CopyFrom(duration_of(int(steps.get("max", 7_200_000))))
        policy.exponential_backoff.multiplier = float(steps.get("multiplier", 2))
    else:
        steps = given.get("customizedRetryPolicy") or {}
        delays = steps.get("next") or DELAY_LEVELS_MS
        if only_exponential:
            policy.exponential_backoff.initial.CopyFrom(duration_of(int(delays[0])))
            policy.exponential_backoff.max.CopyFrom(duration_of(int(delays[-1])))
            policy.exponential_backoff.multiplier = 2.0
            return policy
        policy.customized_backoff.next.extend(duration_of(int(delay)) for delay in delays)
    return policy


async def heartbeat(call: Call, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
    """Answer Heartbeat. The stream says whether a client is there; any proxy answers, so that clients may change it."""
    call.proxy.clients.heard(call.client_key)
    if request.HasField("group"):
        check_name(check_client_group, request.group.name, Code.ILLEGAL_CONSUMER_GROUP)
    return pb.HeartbeatResponse(status=ok())


async def terminated(call: Call, request: pb.NotifyClientTerminationRequest) -> pb.NotifyClientTerminationResponse:
    """Answer NotifyClientTermination: what a push consumer still has is given back, at the latest after a moment."""
    call.proxy.clients.left(call.client_key)
    call.proxy.spawn(call.proxy.renewals.give_back_all(call.client_key))
    return pb.NotifyClientTerminationResponse(status=ok())
