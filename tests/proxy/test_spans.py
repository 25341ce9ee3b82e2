"""Spans of calls: children of their clients', parents of the broker's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from reput_protocol.proxy_process import ProxySpan
from reput_proxy import messaging_pb2 as pb
from reput_proxy.spans import Spans
from support.broker_process import BrokerProcess, free_port
from support.grpc_client import Code, client_of, in_asyncio, message, proxy_of, receive_request
from support.otlp_receiver import attributes, receiving_spans
from support.proxy_process import running_proxy
from support.waiting import until, wait_until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SERVICE = "apache.rocketmq.v2.MessagingService"


def context(flags: str = "01", trace_id: str = TRACE) -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-{PARENT}-{flags}"}


def ids(span: ProxySpan) -> tuple[str, str]:
    return span.trace_id, span.parent_id


@in_asyncio
async def test_a_call_is_a_child_of_its_clients_span_and_passes_its_own_on(address: str, topic: str) -> None:
    found: list[ProxySpan] = []
    given = {**context(), "tracestate": "vendor=1"}
    async with (
        proxy_of(address, spans=Spans(found.append, 0.0)) as running,
        client_of(running.address, metadata=given) as client,
    ):
        await client.send(message(topic, b"x", "ID"))
        [got] = await client.receive_all(topic, topic, 1)
        await client.ack(topic, got)
        send, receive, ack = found
        assert [span.name for span in found] == [
            f"{SERVICE}/{method}" for method in ("SendMessage", "ReceiveMessage", "AckMessage")
        ]
        assert {ids(span) for span in found} == {(TRACE, PARENT)}
        assert got.user_properties["traceparent"] == f"00-{TRACE}-{send.span_id}-01"
        assert got.user_properties["tracestate"] == "vendor=1"
        assert send.attributes == {
            "rpc.system": "grpc",
            "rpc.service": SERVICE,
            "rpc.method": "SendMessage",
            "messaging.system": "rocketmq",
            "messaging.batch.message_count": 1,
            "messaging.destination.name": topic,
        }
        for span in (receive, ack):
            assert span.attributes["messaging.destination.name"] == topic
            assert span.attributes["messaging.consumer.group.name"] == topic
        assert {span.error for span in found} == {None}
        assert all(span.started_at_ns <= span.ended_at_ns for span in found)


@pytest.mark.parametrize(
    ("given", "ratio", "count"),
    [
        ({}, 0.0, 0),
        ({}, 1.0, 1),
        (context("00"), 1.0, 0),  # its client has decided
        (context(trace_id="0" * 32), 1.0, 0),
        ({"traceparent": "nonsense"}, 0.0, 0),
        ({"traceparent": "nonsense"}, 1.0, 1),
    ],
)
def test_the_client_decides_about_spans_or_else_the_ratio(
    address: str, topic: str, given: dict[str, str], ratio: float, count: int
) -> None:
    found: list[ProxySpan] = []

    async def work() -> None:
        async with (
            proxy_of(address, spans=Spans(found.append, ratio)) as running,
            client_of(running.address, metadata=given) as client,
        ):
            await client.send(message(topic, b"x", "ID"))

    asyncio.run(work())
    assert len(found) == count
    assert all(span.parent_id == "" and span.trace_id != TRACE for span in found)


def test_a_message_with_a_context_of_its_own_keeps_it_and_the_call_is_a_child_of_that(address: str, topic: str) -> None:
    found: list[ProxySpan] = []

    async def work() -> None:
        async with proxy_of(address, spans=Spans(found.append, 0.0)) as running, client_of(running.address) as client:
            await client.send(message(topic, b"x", "ID", properties=context()))
            [got] = await client.receive_all(topic, topic, 1)
            assert got.user_properties["traceparent"] == context()["traceparent"]

    asyncio.run(work())
    assert [ids(span) for span in found] == [(TRACE, PARENT)]


def test_errors_and_clients_that_have_gone(address: str, topic: str) -> None:
    found: list[ProxySpan] = []

    async def work() -> None:
        async with proxy_of(address, spans=Spans(found.append, 1.0)) as running, client_of(running.address) as client:
            await client.call("AckMessage", pb.AckMessageRequest(group=pb.Resource(name="a b")))
            status, _ = await client.receive(topic, topic)
            assert status.code == Code.MESSAGE_NOT_FOUND
            await client.receive(topic, topic, invisible_s=1.0)
            call = client.start("ReceiveMessage", receive_request(topic, topic, wait_s=20.0))
            waiting = asyncio.ensure_future(call.read())
            await until(lambda: running.proxy.receives == 1)
            call.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await until(lambda: len(found) == 4)

    asyncio.run(work())
    assert [span.error for span in found] == ["ILLEGAL_TOPIC", None, "ILLEGAL_INVISIBLE_TIME", "cancelled"]


async def send(address: str) -> None:
    async with client_of(address, metadata=context()) as client:
        await client.send(message("orders", b"x", "ID"))


@pytest.mark.process
def test_the_broker_exports_the_spans_of_its_proxy(tmp_path: Path) -> None:
    port = free_port()
    with receiving_spans() as receiver:
        options = {"REPUT_PROXY_PORT": str(port), "REPUT_TRACING__ENDPOINT": receiver.url}
        with BrokerProcess(tmp_path / "data", environment=options) as broker:
            wait_until(lambda: "proxy_ready" in broker.log_tail(), what=broker.log_tail)
            asyncio.run(send(f"127.0.0.1:{port}"))
            check(receiver, broker="reput")


@pytest.mark.process
def test_reput_proxy_exports_its_spans(tmp_path: Path) -> None:
    with (
        receiving_spans() as receiver,
        BrokerProcess(tmp_path / "data", environment={"REPUT_TRACING__ENDPOINT": receiver.url}) as broker,
        running_proxy(tmp_path, broker.address, "--tracing-endpoint", receiver.url) as proxy,
    ):
        proxy.wait_ready()
        asyncio.run(send(proxy.address))
        check(receiver, broker="reput-proxy")


def check(receiver: Any, broker: str) -> None:
    """Assert that both spans were received, in one trace."""
    [call], [store] = receiver.wait(1, SERVICE), receiver.wait(1, "store")
    assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE, PARENT)
    assert (store.trace_id, store.parent_span_id) == (call.trace_id, call.span_id)
    assert attributes(call)["rpc.method"] == "SendMessage"
    assert broker in {resource["service.name"] for resource in receiver.resources}
