"""Requests that were changed at random are answered with a code, and no other client notices."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from reput_proxy import messaging_pb2 as pb
from reput_proxy.messages import duration_of
from reput_proxy.service import METHODS, SERVICE
from support.grpc_client import (
    Code,
    GrpcClient,
    Telemetry,
    ack_request,
    client_of,
    message,
    proxy_of,
    receive_request,
)

CHANGED = 1500
AT_ONCE = 16


async def samples(client: GrpcClient, topic: str) -> dict[str, Sequence[Any]]:
    """Return valid requests by method."""
    await client.send(message(topic, b"x", "ID"))
    [got] = await client.receive_all(topic, topic, 1)
    [half] = await client.send(message(topic, b"x", "ID2", message_type=pb.TRANSACTION))
    named = pb.Resource(name=topic)
    queue = pb.MessageQueue(topic=named, id=0)
    dialled = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="h", port=1)])
    handle = got.system_properties.receipt_handle
    several = [message(topic, b"x", f"ID{n}", tag="a", keys=["k"], properties={"a": "b"}) for n in range(3)]
    return {
        "QueryRoute": [pb.QueryRouteRequest(topic=named, endpoints=dialled)],
        "QueryAssignment": [pb.QueryAssignmentRequest(topic=named, group=named, endpoints=dialled)],
        "Heartbeat": [pb.HeartbeatRequest(group=named, client_type=pb.PUSH_CONSUMER)],
        "NotifyClientTermination": [pb.NotifyClientTerminationRequest(group=named)],
        "SendMessage": [
            pb.SendMessageRequest(messages=several[:1]),
            pb.SendMessageRequest(messages=several),
            pb.SendMessageRequest(messages=[message(topic, b"x", "ID", message_group="g")]),
        ],
        "RecallMessage": [pb.RecallMessageRequest(topic=named, recall_handle="djEgdCBicm9rZXItYSAxIElE")],
        "EndTransaction": [
            pb.EndTransactionRequest(topic=named, transaction_id=half.transaction_id, resolution=pb.COMMIT)
        ],
        "AckMessage": [ack_request(topic, got), ack_request(topic, got, got)],
        "ChangeInvisibleDuration": [
            pb.ChangeInvisibleDurationRequest(
                group=named, topic=named, receipt_handle=handle, invisible_duration=duration_of(30_000)
            )
        ],
        "ForwardMessageToDeadLetterQueue": [
            pb.ForwardMessageToDeadLetterQueueRequest(group=named, topic=named, receipt_handle=handle)
        ],
        "UpdateOffset": [pb.UpdateOffsetRequest(group=named, message_queue=queue, offset=1)],
        "GetOffset": [pb.GetOffsetRequest(group=named, message_queue=queue)],
        "QueryOffset": [pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=pb.END)],
        "PullMessage": [pb.PullMessageRequest(group=named, message_queue=queue, batch_size=3)],
    }


def changed(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with one to four changes."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(4):
            case 0:
                found[at : at + 1] = rng.randbytes(1)
            case 1:
                del found[at : at + rng.randrange(1, 6)]
            case 2:
                found[at:at] = rng.randbytes(rng.randrange(1, 6))
            case 3:
                found += found[at:]
    return bytes(found)


async def answered(client: GrpcClient, name: str, data: bytes) -> int:
    """Send bytes as a request; return the code of the response."""
    method = METHODS[name]
    kind = "unary_stream" if method.server_streaming else "unary_unary"
    call = getattr(client.channel, kind)(
        f"/{SERVICE}/{name}",
        request_serializer=None,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )(data, metadata=client._metadata, timeout=20.0)
    if method.server_streaming:
        responses = [response async for response in call]
        return int(responses[0].status.code)
    return int((await call).status.code)


@pytest.mark.parametrize("seed", [1])
def test_changed_requests_are_answered(
    seed: int, address: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)

    async def work() -> None:
        async with proxy_of(address) as running, client_of(running.address) as client:
            given = await samples(client, topic)
            numbers = iter(range(CHANGED))

            async def send() -> None:
                for _ in numbers:
                    name = rng.choice([*given])
                    data = changed(rng.choice(given[name]).SerializeToString(), rng)
                    code = await answered(client, name, data)
                    assert code in Code.values(), (name, data)
                    assert code != Code.INTERNAL_SERVER_ERROR, (name, data)

            await asyncio.gather(*(send() for _ in range(AT_ONCE)))

    asyncio.run(work())
    assert "failed" not in caplog.text


def test_a_stream_of_bytes_that_are_no_command_ends(address: str, topic: str) -> None:
    async def work() -> None:
        async with proxy_of(address) as running, client_of(running.address) as client:
            call = client.channel.stream_stream(f"/{SERVICE}/Telemetry")(metadata=client._metadata)
            await call.write(b"\xff\xff\xff")
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call.read()
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert len(running.proxy.clients) == 0

    asyncio.run(work())


def test_a_client_that_does_not_read_delays_no_other(address: str, topic: str) -> None:
    async def work() -> None:
        async with (
            proxy_of(address) as running,
            client_of(running.address, "slow") as slow,
            client_of(running.address, "other") as other,
        ):
            for n in range(12):
                await other.send(message(topic, bytes(1 << 20), f"ID{n}"))
            call = slow.start("ReceiveMessage", receive_request(topic, topic))
            assert (await call.read()).status.code == Code.OK
            stream = Telemetry(slow)
            await stream.call.write(pb.TelemetryCommand())
            async with asyncio.timeout(20):
                for n in range(50):
                    await other.send(message(f"{topic}-2", b"x", f"ID{n}"))
                assert len(await other.receive_all(f"{topic}-2", topic, 50)) == 50
            call.cancel()
            # What it has not read is redelivered at once.
            got = await other.receive_all(topic, topic, 12 - 4, wait_s=20, batch=1)
            assert len(got) == 12 - 4

    asyncio.run(work())
