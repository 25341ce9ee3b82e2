"""Requests that were changed at random are answered with a code, and no other client notices."""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from fuzz.grpc_requests import changed, samples
from reput_proxy import messaging_pb2 as pb
from reput_proxy.service import METHODS, SERVICE
from support.grpc_client import Code, GrpcClient, Telemetry, client_of, in_asyncio, message, proxy_of, receive_request

CHANGED = 1500
AT_ONCE = 16


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
        try:
            responses = [response async for response in call]
        except grpc.aio.AioRpcError as error:
            # A message of a stream that cannot be decoded ends it: there is no response to have a code.
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            return int(Code.BAD_REQUEST)
        return int(responses[0].status.code) if responses else int(Code.OK)
    return int((await call).status.code)


@pytest.mark.parametrize("seed", [1])
def test_changed_requests_are_answered(seed: int, address: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
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


@in_asyncio
async def test_a_stream_of_bytes_that_are_no_command_ends(address: str, topic: str) -> None:
    async with proxy_of(address) as running, client_of(running.address) as client:
        call = client.channel.stream_stream(f"/{SERVICE}/Telemetry")(metadata=client._metadata)
        await call.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert len(running.proxy.clients) == 0


@in_asyncio
async def test_a_client_that_does_not_read_delays_no_other(address: str, topic: str) -> None:
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
