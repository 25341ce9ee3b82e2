"""Changed requests at the service of the proxy: its handlers as gRPC calls them, in front of a real broker."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import grpc

from fuzz.grpc_requests import TEXTS, altered, changed, samples
from fuzz.outcome import Memory, Outcome
from reput_client import Admin
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_proxy import messaging_pb2 as pb
from reput_proxy.service import METHODS, SERVICE, Service
from support.broker_process import BrokerProcess
from support.grpc_client import ack_request, client_of, message, proxy_of

_AT_ONCE = 32
_BATCH = 2_000
_REQUEST_S = 60.0
_TOPIC = "orders"
_OPTIONS = {"REPUT_TOPICS__AUTO_CREATE": "false", "REPUT_GROUPS__AUTO_CREATE": "false", "REPUT_STORE__FLUSH": "async"}


class _Method:
    """What gRPC knows of a method."""

    def __init__(self, name: str) -> None:
        self.method = f"/{SERVICE}/{name}"


class _Aborted(Exception):
    """A stream was ended with an error."""


class _Context:
    """A call with the metadata of a client; collects what is written."""

    def __init__(self, metadata: tuple[tuple[str, str | bytes], ...]) -> None:
        self.written: list[Any] = []
        self.aborted_with: grpc.StatusCode | None = None
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata

    def time_remaining(self) -> float:
        return 5.0

    async def write(self, response: Any) -> None:
        self.written.append(response)

    async def abort(self, code: grpc.StatusCode, _text: str) -> None:
        self.aborted_with = code
        raise _Aborted


def fuzz_grpc(seed: int, cases: int) -> Outcome:
    """Answer `cases` changed requests: all with a code, none with an internal error; memory stays."""
    outcome = Outcome()
    with (
        tempfile.TemporaryDirectory(prefix="reput-fuzz-grpc-") as directory,
        _defects(outcome),
        patch("reput_proxy.receiving.WAIT_MIN_S", 0.01),
        BrokerProcess(Path(directory) / "data", environment=_OPTIONS) as broker,
    ):
        asyncio.run(_fuzz(broker.address, Random(seed), cases, outcome))
    return outcome


@contextmanager
def _defects(outcome: Outcome) -> Iterator[None]:
    """Count as a violation what the proxy logs with an exception."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and not outcome.enough:
                outcome.violations.append(f"{record.msg}: {record.exc_info[1]!r}")

    handler, logger = Handler(), logging.getLogger("reput_proxy")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


async def _fuzz(address: str, rng: Random, cases: int, outcome: Outcome) -> None:
    async with Admin(address) as admin:
        await admin.create_topic(_TOPIC)
        await admin.put_group(SubscriptionGroupConfig(_TOPIC))
    async with proxy_of(address) as running, client_of(running.address) as client:
        given = await samples(client, _TOPIC)
        handlers = Service(running.proxy).handlers()
        methods = {name: handlers.service(_Method(name)) for name in METHODS}
        before: Memory | None = None
        while outcome.cases < cases and not outcome.enough:
            batch = min(_BATCH, cases - outcome.cases)
            names = [rng.choice([*given]) for _ in range(batch)]
            inputs = iter([(name, _inputs(name, given[name], rng), _metadata(rng)) for name in names])
            await asyncio.gather(*(_ask(methods, inputs, outcome) for _ in range(_AT_ONCE)))
            outcome.cases += batch
            await client.send(message(_TOPIC, b"still served", f"probe-{outcome.cases}"))
            before = before or Memory.now()
        assert before is not None
        outcome.note_memory(before)


def _inputs(name: str, given: Sequence[Any], rng: Random) -> list[bytes]:
    """Return the bytes of one request, or of some commands of a stream."""
    return [_input(rng.choice(given), rng) for _ in range(rng.randrange(4) if name == "Telemetry" else 1)]


def _input(request: Any, rng: Random) -> bytes:
    """Return the bytes of a request, half of which are those of a message, mostly a wrong one."""
    if rng.random() < 0.5:
        return changed(request.SerializeToString(), rng)
    data: bytes = altered(request, rng).SerializeToString()
    return data


def _metadata(rng: Random) -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata of a call, seldom an invalid one."""
    found: list[tuple[str, str | bytes]] = [("x-mq-client-id", f"client-{rng.randrange(4)}")]
    if rng.random() < 0.1:
        found[0] = "x-mq-client-id", rng.choice(TEXTS)
    if rng.random() < 0.1:
        found.append(("traceparent", rng.choice((*TEXTS, f"00-{1:032x}-{1:016x}-01"))))
        found.append(("tracestate", rng.choice(TEXTS)))
    if rng.random() < 0.05:
        found.append(("x-bin", rng.randbytes(4)))
    return tuple(found)


_OF_A_HANDLE: Final = ("AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue")
_Input: TypeAlias = tuple[str, list[bytes], tuple[tuple[str, str | bytes], ...]]


async def _ask(methods: dict[str, Any], inputs: Iterator[_Input], outcome: Outcome) -> None:
    for name, data, metadata in inputs:
        method, context = methods[name], _Context(metadata)
        requests = [method.request_deserializer(each) for each in data]
        try:
            async with asyncio.timeout(_REQUEST_S):
                code, text = await _answer(method, requests, context)
                if name == "ReceiveMessage":
                    await _settle(methods["AckMessage"], requests[0], context)
        except (Exception, grpc.RpcError) as error:
            outcome.violations.append(f"{name} {data!r} raises {error!r}")
            continue
        known = code in pb.Code.values()
        outcome.answers[pb.Code.Name(code) if known else "unknown"] += 1
        # A handle whose time is not over may be of a broker that is away.
        is_away = name in _OF_A_HANDLE and text.startswith("no master of broker ")
        if not known or (code == pb.INTERNAL_SERVER_ERROR and not is_away):
            outcome.violations.append(f"{name} {data!r} is answered with {code}: {text}")
        if outcome.enough:
            return


async def _answer(method: Any, requests: list[Any], context: _Context) -> tuple[int, str]:
    """Have one call answered; return the code and the text of its status."""
    if method.request_streaming:
        try:
            await method.stream_stream(_stream(requests), context)
        except _Aborted:
            wrong = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED)
            code = pb.BAD_REQUEST if context.aborted_with in wrong else pb.INTERNAL_SERVER_ERROR
            return int(code), f"ends with {context.aborted_with}"
        return int(pb.OK), ""
    if method.response_streaming:
        await method.unary_stream(requests[0], context)
        status = context.written[0].status
    else:
        status = (await method.unary_unary(requests[0], context)).status
    return status.code, status.message


async def _stream(commands: list[Any]) -> AsyncIterator[Any]:
    for command in commands:
        yield command


async def _settle(ack: Any, request: Any, context: _Context) -> None:
    """Acknowledge what was received, so that the proxy does not hold more and more."""
    got = [response.message for response in context.written if response.HasField("message")]
    if got:
        acknowledged = ack_request(request.group.name, *got)
        await ack.unary_unary(acknowledged, _Context(tuple(context.invocation_metadata())))
