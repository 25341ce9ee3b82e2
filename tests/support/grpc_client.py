"""A gRPC client of the proxy, which sends what a test says, and a proxy in the test's event loop."""

from __future__ import annotations

import asyncio
import functools
import hmac
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import grpc.aio
from google.protobuf.message_factory import GetMessageClass

from reput_proxy import messaging_pb2 as pb
from reput_proxy.messages import duration_of
from reput_proxy.proxy import Proxy
from reput_proxy.server import ProxyOptions, RunningProxy, serving
from reput_proxy.service import METHODS, SERVICE
from reput_proxy.upstream import BrokerOptions

P = ParamSpec("P")

Code = pb.Code
TIMEOUT_S = 30.0
DATE_TIME = "20261129T000000Z"


class GrpcClient:
    """One client, by its id.

    Args:
        metadata: more of each call.
        credentials: for TLS; None: a plain connection.
        shares: whether gRPC may use one connection for several clients of the process.

    Attributes:
        proxy: the state of a proxy in the same event loop, where a test needs it.
    """

    proxy: Proxy

    def __init__(
        self,
        address: str,
        client_id: str = "client-1",
        metadata: Mapping[str, str] | None = None,
        credentials: Any = None,
        *,
        shares: bool = True,
    ) -> None:
        self.address = address
        self._metadata = (("x-mq-client-id", client_id), *(metadata or {}).items())
        options = () if shares else (("grpc.use_local_subchannel_pool", 1),)
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options)

    def start(self, name: str, request: Any = None, timeout_s: float = TIMEOUT_S) -> Any:
        """Begin a call of a method of the service, whatever its kind."""
        method = METHODS[name]
        kind = "_".join(
            "stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming)
        )
        make = getattr(self.channel, kind)
        call = make(
            f"/{SERVICE}/{name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        arguments = () if request is None else (request,)
        return call(*arguments, metadata=self._metadata, timeout=timeout_s)

    async def call(self, name: str, request: Any, timeout_s: float = TIMEOUT_S) -> Any:
        """Return the response to a request."""
        return await self.start(name, request, timeout_s)

    async def responses(self, name: str, request: Any, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """Return the responses to a request."""
        return [response async for response in self.start(name, request, timeout_s)]

    async def send(self, *messages: pb.Message) -> list[pb.SendResultEntry]:
        """Send messages, which must succeed."""
        response = await self.call("SendMessage", pb.SendMessageRequest(messages=messages))
        assert response.status.code == Code.OK, response
        return list(response.entries)

    async def receive(
        self, topic: str, group: str, timeout_s: float = TIMEOUT_S, **more: Any
    ) -> tuple[pb.Status, list[pb.Message]]:
        """Receive messages; returns the status too."""
        responses = await self.responses("ReceiveMessage", receive_request(topic, group, **more), timeout_s)
        messages = [each.message for each in responses if each.HasField("message")]
        return responses[0].status, messages

    async def receive_all(self, topic: str, group: str, count: int, **more: Any) -> list[pb.Message]:
        """Receive until there are so many messages."""
        found: list[pb.Message] = []
        async with asyncio.timeout(TIMEOUT_S):
            while len(found) < count:
                status, messages = await self.receive(topic, group, **more)
                assert status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), status
                found += messages
        assert len(found) == count
        return found

    async def ack(self, group: str, *messages: pb.Message) -> pb.AckMessageResponse:
        """Acknowledge messages."""
        response: pb.AckMessageResponse = await self.call("AckMessage", ack_request(group, *messages))
        return response

    async def aclose(self) -> None:
        """Close the connection."""
        await self.channel.close()


class Telemetry:
    """A Telemetry stream of a client."""

    def __init__(self, client: GrpcClient) -> None:
        self.call = client.start("Telemetry")

    async def settle(self, settings: pb.Settings) -> pb.Settings:
        """Send settings and return those of the proxy."""
        await self.call.write(pb.TelemetryCommand(settings=settings))
        answer = await self.read()
        assert answer.status.code == Code.OK
        return answer.settings

    async def read(self) -> pb.TelemetryCommand:
        """Return the next command."""
        async with asyncio.timeout(TIMEOUT_S):
            command: pb.TelemetryCommand = await self.call.read()
        assert command is not grpc.aio.EOF
        return command


def producer_settings(*topics: str) -> pb.Settings:
    """Return what a producer sends."""
    named = [pb.Resource(name=topic) for topic in topics]
    return pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=named))


def consumer_settings(group: str, topic: str, kind: Any = pb.PUSH_CONSUMER) -> pb.Settings:
    """Return what a consumer sends."""
    entry = pb.SubscriptionEntry(topic=pb.Resource(name=topic), expression=pb.FilterExpression(expression="*"))
    subscription = pb.Subscription(group=pb.Resource(name=group), subscriptions=[entry])
    return pb.Settings(client_type=kind, subscription=subscription)


def message(topic: str, body: bytes, message_id: str, **system: Any) -> pb.Message:
    """Return a message; `properties` are the application's."""
    properties = system.pop("properties", {})
    return pb.Message(
        topic=pb.Resource(name=topic),
        body=body,
        user_properties=properties,
        system_properties=pb.SystemProperties(message_id=message_id, **system),
    )


def receive_request(
    topic: str, group: str, *, invisible_s: float = 60.0, wait_s: float = 5.0, auto_renew: bool = False,
    batch: int = 32, tags: str = "*", sql: str | None = None, attempt_id: str | None = None,
) -> pb.ReceiveMessageRequest:  # fmt: skip
    """Return a request to receive."""
    wanted = (
        pb.FilterExpression(type=pb.TAG, expression=tags)
        if sql is None
        else pb.FilterExpression(type=pb.SQL, expression=sql)
    )
    return pb.ReceiveMessageRequest(
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
        filter_expression=wanted,
        batch_size=batch,
        invisible_duration=duration_of(round(invisible_s * 1000)),
        long_polling_timeout=duration_of(round(wait_s * 1000)),
        auto_renew=auto_renew,
        attempt_id=attempt_id,
    )


def ack_request(group: str, *messages: pb.Message) -> pb.AckMessageRequest:
    """Return a request to acknowledge messages of one topic."""
    return pb.AckMessageRequest(
        group=pb.Resource(name=group),
        topic=messages[0].topic,
        entries=[
            pb.AckMessageEntry(
                message_id=each.system_properties.message_id, receipt_handle=each.system_properties.receipt_handle
            )
            for each in messages
        ],
    )


def signed_by(user: str, secret: str, date_time: str = DATE_TIME) -> dict[str, str]:
    """Return the metadata of a signed call."""
    signature = hmac.digest(secret.encode(), date_time.encode(), "sha1").hex()
    return {
        "x-mq-date-time": date_time,
        "authorization": f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}",
    }


def bodies(messages: Iterable[pb.Message]) -> list[bytes]:
    """Return the bodies of messages."""
    return [each.body for each in messages]


@asynccontextmanager
async def proxy_of(server: str, **options: Any) -> AsyncIterator[RunningProxy]:
    """Run a proxy in this event loop."""
    async with serving(ProxyOptions(brokers=BrokerOptions(server), port=0, **options), drain_s=5.0) as running:
        yield running


@asynccontextmanager
async def client_of(address: str, client_id: str = "client-1", **more: Any) -> AsyncIterator[GrpcClient]:
    """Connect a client."""
    client = GrpcClient(address, client_id, **more)
    try:
        yield client
    finally:
        await client.aclose()


def in_asyncio(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine function, which runs in an event loop of its own."""

    @functools.wraps(test)
    def run(*given: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*given, **named))

    return run


def with_proxy(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine function that takes a client of a proxy, the broker's address, and a topic."""

    @functools.wraps(test)
    def run(address: str, topic: str) -> None:
        async def work() -> None:
            async with proxy_of(address) as running, client_of(running.address) as client:
                client.proxy = running.proxy
                await test(client, address, topic)

        asyncio.run(work())

    del run.__dict__["__wrapped__"]  # pytest looks there for the names of fixtures
    return run
