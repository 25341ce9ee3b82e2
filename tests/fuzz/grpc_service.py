"""Changed requests at the service of the proxy: its handlers as gRPC calls them, in front of a real broker."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc

from fuzz.grpc_requests import altered, changed, samples
from fuzz.outcome import Memory, Outcome
from reput_client import Admin
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_proxy import messaging_pb2 as pb
from reput_proxy.service import SERVICE, Service
from support.broker_process import BrokerProcess
from support.grpc_client import client_of, message, proxy_of

_AT_ONCE = 32
_BATCH = 2_000
_REQUEST_S = 60.0
_TOPIC = "orders"
_OPTIONS = {
    "REPUT_TOPICS__AUTO_CREATE": "false",
    "REPUT_GROUPS__AUTO_CREATE": "false",
    "REPUT_STORE__FLUSH": "async",
}


class _Method:
    """What gRPC knows of a method."""

    def __init__(self, name: str) -> None:
        self.method = f"/{SERVICE}/{name}"


class _Context:
    """A call of one client; collects what is written."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-mq-client-id", "client-1"),)

    def time_remaining(self) -> float:
        return 5.0

    async def write(self, response: Any) -> None:
        self.written.append(response)


def fuzz_grpc(seed: int, cases: int) -> Outcome:
    """Answer `cases` changed requests: all with a code, none with an internal error; memory stays."""
    outcome = Outcome()
    with (
        tempfile.TemporaryDirectory(prefix="reput-fuzz-grpc-") as directory,
        _defects(outcome),
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
        methods = {name: handlers.service(_Method(name)) for name in given}
        before: Memory | None = None
        while outcome.cases < cases and not outcome.enough:
            batch = min(_BATCH, cases - outcome.cases)
            names = [rng.choice([*given]) for _ in range(batch)]
            inputs = iter([(name, _input(rng.choice(given[name]), rng)) for name in names])
            await asyncio.gather(*(_ask(methods, inputs, outcome) for _ in range(_AT_ONCE)))
            outcome.cases += batch
            await client.send(message(_TOPIC, b"still served", f"probe-{outcome.cases}"))
            before = before or Memory.now()
        assert before is not None
        outcome.note_memory(before)


def _input(request: Any, rng: Random) -> bytes:
    """Return the bytes of a request, half of which are those of a message, mostly a wrong one."""
    if rng.random() < 0.5:
        return changed(request.SerializeToString(), rng)
    data: bytes = altered(request, rng).SerializeToString()
    return data


async def _ask(methods: dict[str, Any], inputs: Iterator[tuple[str, bytes]], outcome: Outcome) -> None:
    for name, data in inputs:
        method, context = methods[name], _Context()
        request = method.request_deserializer(data)
        try:
            async with asyncio.timeout(_REQUEST_S):
                if method.response_streaming:
                    await method.unary_stream(request, context)
                    status = context.written[0].status
                else:
                    status = (await method.unary_unary(request, context)).status
        except (Exception, grpc.RpcError) as error:
            outcome.violations.append(f"{name} {data!r} raises {error!r}")
            continue
        known = status.code in pb.Code.values()
        outcome.answers[pb.Code.Name(status.code) if known else "unknown"] += 1
        if not known or status.code == pb.Code.Value("INTERNAL_SERVER_ERROR"):
            outcome.violations.append(f"{name} {data!r} is answered with {status.code}: {status.message}")
        if outcome.enough:
            return
