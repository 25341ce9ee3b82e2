"""Requests of gRPC clients: valid ones, and with random changes of their bytes or fields."""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Sequence
from typing import Any

from reput_proxy import messaging_pb2 as pb
from reput_proxy.messages import duration_of, timestamp_of
from support.grpc_client import GrpcClient, ack_request, consumer_settings, message, producer_settings, receive_request


async def samples(client: GrpcClient, topic: str) -> dict[str, Sequence[Any]]:
    """Return valid requests by method; each one of Telemetry is a command of a stream."""
    await client.send(message(topic, b"x", "ID"))
    [got] = await client.receive_all(topic, topic, 1)
    [half] = await client.send(message(topic, b"x", "ID2", message_type=pb.TRANSACTION))
    named = pb.Resource(name=topic)
    queue = pb.MessageQueue(topic=named, id=0)
    dialled = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="h", port=1)])
    handle = got.system_properties.receipt_handle
    several = [message(topic, b"x", f"ID{n}", tag="a", keys=["k"], properties={"a": "b"}) for n in range(3)]
    kinds = [
        message(topic, b"x", "ID", message_group="g"),
        message(topic, b"x", "ID", delivery_timestamp=timestamp_of(round(time.time() + 60) * 1000)),
        message(topic, b"x", "ID", priority=3),
        message(topic, b"x", "ID", message_type=pb.TRANSACTION),
        message(topic, gzip.compress(b"x" * 100), "ID", body_encoding=pb.GZIP),
        message(topic, b"x", "ID", born_host="h", trace_context=f"00-{1:032x}-{1:016x}-01"),
    ]
    return {
        "QueryRoute": [pb.QueryRouteRequest(topic=named, endpoints=dialled)],
        "QueryAssignment": [pb.QueryAssignmentRequest(topic=named, group=named, endpoints=dialled)],
        "Heartbeat": [pb.HeartbeatRequest(group=named, client_type=pb.PUSH_CONSUMER)],
        "NotifyClientTermination": [pb.NotifyClientTerminationRequest(group=named)],
        "SendMessage": [
            pb.SendMessageRequest(messages=several[:1]),
            pb.SendMessageRequest(messages=several),
            *(pb.SendMessageRequest(messages=[one]) for one in kinds),
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
        "ReceiveMessage": [
            receive_request(topic, topic, wait_s=0.0, batch=4),
            receive_request(topic, topic, wait_s=0.0, batch=4, auto_renew=True),
            receive_request(topic, topic, wait_s=0.0, batch=4, sql="a IS NOT NULL AND b > 3"),
        ],
        "Telemetry": [
            pb.TelemetryCommand(settings=producer_settings(topic)),
            *(
                pb.TelemetryCommand(settings=consumer_settings(topic, topic, kind))
                for kind in (pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER)
            ),
            pb.TelemetryCommand(thread_stack_trace=pb.ThreadStackTrace(nonce="1", thread_stack_trace="main")),
            pb.TelemetryCommand(verify_message_result=pb.VerifyMessageResult(nonce="1")),
            pb.TelemetryCommand(
                recover_orphaned_transaction_command=pb.RecoverOrphanedTransactionCommand(
                    message=several[0], transaction_id=half.transaction_id
                )
            ),
            pb.TelemetryCommand(reconnect_endpoints_command=pb.ReconnectEndpointsCommand(nonce="1")),
        ],
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


_INTEGERS = (0, 1, -1, 7, 127, 1 << 16, (1 << 31) - 1, -(1 << 31))
TEXTS = (
    *("", " ", "x" * 300, "a|b", "a b", "*", "-1", "zw\u00f6lf", "\x01\x02", "\ud7ff"),
    *("%RETRY%orders", "TBW102", "rmq_sys_x"),
)


def altered(request: Any, rng: random.Random) -> Any:
    """Return a copy with one to three fields of it, or of messages in it, set to values of their types."""
    found = type(request)()
    found.CopyFrom(request)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _alter(found, rng)
    return found


def _alter(message: Any, rng: random.Random) -> None:
    field = rng.choice(message.DESCRIPTOR.fields)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name)[rng.choice(TEXTS)] = rng.choice(TEXTS)
    elif field.is_repeated:
        values = getattr(message, field.name)
        if not values or rng.random() < 0.2:
            message.ClearField(field.name)
        elif field.message_type is None:
            values.append(_value(field, rng))
        elif rng.random() < 0.3:
            values.add().CopyFrom(values[0])
        else:
            _alter(rng.choice(values), rng)
    elif field.message_type is None:
        setattr(message, field.name, _value(field, rng))
    elif rng.random() < 0.1:
        message.ClearField(field.name)
    else:
        _alter(getattr(message, field.name), rng)


def _value(field: Any, rng: random.Random) -> Any:
    """Return any value of a field's type."""
    if field.cpp_type == field.CPPTYPE_STRING:
        return rng.choice(TEXTS) if field.type == field.TYPE_STRING else rng.randbytes(rng.choice((0, 1, 500)))
    if field.cpp_type in (field.CPPTYPE_BOOL, field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice((0, 1))
    if field.cpp_type == field.CPPTYPE_ENUM:
        return rng.randrange(10)
    large = (1 << 62, -(1 << 63)) if field.cpp_type == field.CPPTYPE_INT64 else ()
    return rng.choice((*_INTEGERS, *large))
