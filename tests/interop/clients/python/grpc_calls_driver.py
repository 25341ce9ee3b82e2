"""Single calls of RocketMQ's gRPC service as a driver of the interop suite; `interop/client.py` has the lines.

It makes the calls that none of RocketMQ's clients makes: pulls, offsets of groups, and dead letters of a consumer that
is not in order. The address is that of a proxy.
"""

from __future__ import annotations

import base64
import queue
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from lines import handler, run

from reput_proxy import messaging_pb2 as pb
from reput_proxy.messages import duration_of, timestamp_of
from reput_proxy.service import METHODS, SERVICE

_TIMEOUT_S = 30.0
_AWAIT_MS = 5000
_HEARTBEAT_S = 10.0
_INVISIBLE_MS = 60_000
_AGAIN_AFTER_MS = 1000
_BATCH = 16


class Calls:
    """One client of the service.

    Args:
        address: the proxy's: an IPv4 address and a port.
        settings: what it tells the proxy about itself; None: nothing.

    Attributes:
        endpoints: the address, as requests have it.
    """

    def __init__(self, address: str, settings: pb.Settings | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host=host, port=int(port))])
        self._channel = grpc.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),))
        self._metadata = (
            ("x-mq-client-id", f"calls@{uuid.uuid4()}"),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "5.0.0"),
            ("x-mq-protocol", "v2"),
        )
        self._commands: queue.SimpleQueue[pb.TelemetryCommand | None] = queue.SimpleQueue()
        if settings is not None:
            self._commands.put(pb.TelemetryCommand(settings=settings))
            self._telemetry = self._method("Telemetry")(iter(self._commands.get, None), metadata=self._metadata)
            # The proxy has the settings when it has answered with its own.
            next(command for command in self._telemetry if command.HasField("settings"))

    def call(self, name: str, request: Any, *more: int) -> Any:
        """Return the response, whose code must be OK or one of these."""
        response = self._method(name)(request, metadata=self._metadata, timeout=_TIMEOUT_S)
        if response.status.code not in (pb.OK, *more):
            raise RuntimeError(f"{name}: {response.status}")
        return response

    def messages(self, name: str, request: Any) -> tuple[list[pb.Message], int]:
        """Return the messages of a receive or pull, and the next offset of a pull."""
        responses = list(self._method(name)(request, metadata=self._metadata, timeout=_TIMEOUT_S))
        statuses = [each.status for each in responses if each.HasField("status")]
        wrong = [each for each in statuses if each.code not in (pb.OK, pb.MESSAGE_NOT_FOUND)]
        if wrong:
            raise RuntimeError(f"{name}: {wrong[0]}")
        following = [each.next_offset for each in responses if name == "PullMessage"]
        found = [each.message for each in responses if each.HasField("message")]
        return found, max(following, default=0)

    def close(self) -> None:
        """End the connection."""
        self._commands.put(None)
        self._channel.close()

    def _method(self, name: str) -> Any:
        method = METHODS[name]
        kind = "_".join(
            "stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming)
        )
        return getattr(self._channel, kind)(
            f"/{SERVICE}/{name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )


class Driver:
    """Its sends and consumers."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._sends = Calls(address)
        self._ends: dict[str, tuple[threading.Event, threading.Thread]] = {}

    def produce(self, request: dict[str, Any]) -> list[dict[str, object]]:
        messages = [_message(request, fields) for fields in request["messages"]]
        parts = [messages] if request["how"] == "batch" else [[each] for each in messages]
        if request["how"] not in ("sync", "orderly", "batch"):
            raise ValueError(request["how"])
        entries = [
            entry
            for part in parts
            for entry in self._sends.call("SendMessage", pb.SendMessageRequest(messages=part)).entries
        ]
        return [{"id": each.message_id, "offset": each.offset, "recallHandle": each.recall_handle} for each in entries]

    def recall(self, request: dict[str, Any]) -> bool:
        named = pb.Resource(name=request["topic"])
        self._sends.call("RecallMessage", pb.RecallMessageRequest(topic=named, recall_handle=request["handle"]))
        return True

    def consume(self, request: dict[str, Any]) -> bool:
        consumer = Consumer(self._address, request)
        step = consumer.pull if request["how"] == "pull" else consumer.receive
        ended = threading.Event()
        if request["how"] == "pull":
            step()  # a proxy that does not serve pulls is an error at once

        def work() -> None:
            while not ended.is_set():
                try:
                    consumer.heartbeat()
                    step()
                except (grpc.RpcError, RuntimeError) as error:
                    print(repr(error), file=sys.stderr)
                    time.sleep(0.5)
            consumer.calls.close()

        thread = threading.Thread(target=work, daemon=True)
        self._ends[request["consumer"]] = ended, thread
        thread.start()
        return True

    def stop(self, request: dict[str, Any]) -> bool:
        """End a consumer, which then takes no more messages."""
        ended, thread = self._ends.pop(request["consumer"])
        ended.set()
        thread.join()
        return True


class Consumer:
    """A consumer of one topic, which receives or pulls, in steps."""

    def __init__(self, address: str, request: dict[str, Any]) -> None:
        self._topic = pb.Resource(name=request["topic"])
        self._group = pb.Resource(name=request["group"])
        self._filter = (
            pb.FilterExpression(type=pb.SQL, expression=request["sql"])
            if "sql" in request
            else pb.FilterExpression(type=pb.TAG, expression=request.get("tags", "*"))
        )
        self._times_max = request.get("maxTimes", sys.maxsize)
        self._handle: Callable[[dict[str, object]], bool] = handler(request)
        self._beats_at = time.monotonic()
        subscription = pb.SubscriptionEntry(topic=self._topic, expression=self._filter)
        self.calls = Calls(
            address,
            pb.Settings(
                client_type=pb.SIMPLE_CONSUMER,
                subscription=pb.Subscription(group=self._group, subscriptions=[subscription]),
            ),
        )

    def heartbeat(self) -> None:
        """Send a heartbeat if one is due: RocketMQ's proxy forgets clients without."""
        if time.monotonic() >= self._beats_at:
            request = pb.HeartbeatRequest(group=self._group, client_type=pb.SIMPLE_CONSUMER)
            self.calls.call("Heartbeat", request)
            self._beats_at = time.monotonic() + _HEARTBEAT_S

    def receive(self) -> None:
        """Receive from any queue, and settle each message."""
        found, _ = self.calls.messages(
            "ReceiveMessage",
            pb.ReceiveMessageRequest(
                group=self._group,
                message_queue=self._queue(-1),
                filter_expression=self._filter,
                batch_size=_BATCH,
                invisible_duration=duration_of(_INVISIBLE_MS),
                long_polling_timeout=duration_of(_AWAIT_MS),
            ),
        )
        succeeded = []
        for message in found:
            if self._handle(_described(message)):
                succeeded.append(message)
            else:
                self._give_back(message)
        if succeeded:
            entries = [
                pb.AckMessageEntry(
                    message_id=each.system_properties.message_id, receipt_handle=each.system_properties.receipt_handle
                )
                for each in succeeded
            ]
            request = pb.AckMessageRequest(group=self._group, topic=self._topic, entries=entries)
            self.calls.call("AckMessage", request)

    def _give_back(self, message: pb.Message) -> None:
        """Have a message redelivered soon, or made a dead letter."""
        fields = message.system_properties
        if fields.delivery_attempt > self._times_max:
            self.calls.call(
                "ForwardMessageToDeadLetterQueue",
                pb.ForwardMessageToDeadLetterQueueRequest(
                    group=self._group,
                    topic=self._topic,
                    receipt_handle=fields.receipt_handle,
                    message_id=fields.message_id,
                    delivery_attempt=fields.delivery_attempt,
                    max_delivery_attempts=self._times_max + 1,
                ),
            )
        else:
            self.calls.call(
                "ChangeInvisibleDuration",
                pb.ChangeInvisibleDurationRequest(
                    group=self._group,
                    topic=self._topic,
                    receipt_handle=fields.receipt_handle,
                    message_id=fields.message_id,
                    invisible_duration=duration_of(_AGAIN_AFTER_MS),
                ),
            )

    def pull(self) -> None:
        """Pull what each queue has from the group's offset on, and write that offset."""
        for number in self._queue_ids():
            place = self._queue(number)
            offset = self._offset(place)
            found, following = self.calls.messages(
                "PullMessage",
                pb.PullMessageRequest(
                    group=self._group,
                    message_queue=place,
                    offset=offset,
                    batch_size=_BATCH,
                    filter_expression=self._filter,
                ),
            )
            for message in found:
                self._handle(_described(message))
            if found:
                self.calls.call(
                    "UpdateOffset", pb.UpdateOffsetRequest(group=self._group, message_queue=place, offset=following)
                )

    def _queue_ids(self) -> Iterator[int]:
        request = pb.QueryRouteRequest(topic=self._topic, endpoints=self.calls.endpoints)
        route = self.calls.call("QueryRoute", request)
        return iter(sorted({each.id for each in route.message_queues}))

    def _offset(self, place: pb.MessageQueue) -> int:
        """Where the group continues, at first at the beginning of the queue."""
        request = pb.GetOffsetRequest(group=self._group, message_queue=place)
        response = self.calls.call("GetOffset", request, pb.OFFSET_NOT_FOUND)
        if response.status.code == pb.OFFSET_NOT_FOUND:
            first = pb.QueryOffsetRequest(message_queue=place, query_offset_policy=pb.BEGINNING)
            return int(self.calls.call("QueryOffset", first).offset)
        return int(response.offset)

    def _queue(self, number: int) -> pb.MessageQueue:
        return pb.MessageQueue(topic=self._topic, id=number)


def _message(request: dict[str, Any], fields: dict[str, Any]) -> pb.Message:
    kind, more = pb.NORMAL, {}
    if request["how"] == "orderly":
        kind, more = pb.FIFO, {"message_group": request["key"]}
    elif "delayMs" in request:
        due = timestamp_of(time.time_ns() // 1_000_000 + request["delayMs"])
        kind, more = pb.DELAY, {"delivery_timestamp": due}
    elif "priority" in request:
        kind, more = pb.PRIORITY, {"priority": request["priority"]}
    if fields["tag"]:
        more["tag"] = fields["tag"]
    return pb.Message(
        topic=pb.Resource(name=request["topic"]),
        body=base64.b64decode(fields["body"]),
        user_properties=fields["properties"],
        system_properties=pb.SystemProperties(
            message_id=uuid.uuid4().hex.upper(),
            message_type=kind,
            body_encoding=pb.IDENTITY,
            born_timestamp=timestamp_of(time.time_ns() // 1_000_000),
            keys=(fields["keys"] or "").split(),
            **more,
        ),
    )


def _described(message: pb.Message) -> dict[str, object]:
    fields = message.system_properties
    body = message.body
    if fields.body_encoding == pb.GZIP:
        # Of zlib's form if a remoting client has compressed it.
        body = zlib.decompress(body, zlib.MAX_WBITS | 32)
    return {
        "topic": message.topic.name,
        "queueId": fields.queue_id,
        "offset": fields.queue_offset,
        "id": fields.message_id,
        "body": base64.b64encode(body).decode(),
        "tag": fields.tag,
        "keys": " ".join(sorted(fields.keys)),
        "properties": dict(message.user_properties),
        "times": fields.delivery_attempt - 1,
    }


if __name__ == "__main__":
    driver = Driver(sys.argv[1])
    run({"produce": driver.produce, "recall": driver.recall, "consume": driver.consume, "stop": driver.stop})
