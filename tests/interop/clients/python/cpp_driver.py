"""RocketMQ's C++ client, by PyPI's `rocketmq`, as a driver of the interop suite; `interop/client.py` has the lines.

It runs in a virtual environment of its own, without Reput.
"""

from __future__ import annotations

import base64
import ctypes
import os
import sys
import threading
from typing import Any

from lines import handler, run
from rocketmq.client import Message, Producer, PushConsumer, RecvMessage
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import MessageModel, dll

_TIMEOUT_MS = 60_000
CONSUME_SUCCESS, RECONSUME_LATER = 0, 1

# The package takes properties and bodies for texts that end with a zero byte; the library does not.
dll.SetByteMessageBody.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]


class Driver:
    """Its producers and consumers."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._producer: Any = None
        self._consumers: dict[str, Any] = {}
        self._made = threading.Lock()

    def _sender(self) -> Any:
        with self._made:
            if self._producer is None:
                producer = Producer("interop-cpp", timeout=_TIMEOUT_MS)
                producer.set_namesrv_addr(self._address)
                _sign(producer)
                producer.start()
                self._producer = producer
            return self._producer

    def produce(self, request: dict[str, Any]) -> list[dict[str, object]]:
        producer = self._sender()
        messages = [_message(request, fields) for fields in request["messages"]]
        match request["how"]:
            case "sync":
                results = [producer.send_sync(message) for message in messages]
            case "async":
                results = _sent_async(producer, messages)
            case "one-way":
                for message in messages:
                    producer.send_oneway(message)
                return []
            case "batch":
                results = [producer.send_batch(messages)]
            case "orderly":
                results = [producer.send_orderly(message, 7) for message in messages]
            case how:
                raise ValueError(how)
        assert all(result.status == 0 for result in results), results
        return [{"id": result.msg_id, "offset": result.offset} for result in results]

    def consume(self, request: dict[str, Any]) -> bool:
        model = MessageModel.BROADCASTING if request["how"] == "broadcasting" else MessageModel.CLUSTERING
        consumer = PushConsumer(request["group"], orderly=request["how"] == "orderly", message_model=model)
        consumer.set_namesrv_addr(self._address)
        _sign(consumer)
        consumer.set_instance_name(request["consumer"])
        succeeds = handler(request)

        def handle(_consumer: object, handle_of_message: int) -> int:
            message = _described(RecvMessage(handle_of_message))
            return CONSUME_SUCCESS if succeeds(message) else RECONSUME_LATER

        # As `PushConsumer.subscribe`, whose own callback lets an exception out into C, where the status is then random.
        ffi_check(dll.Subscribe(consumer._handle, request["topic"].encode(), request.get("tags", "*").encode()))
        consumer._register_callback(handle)
        consumer.start()
        self._consumers[request["consumer"]] = consumer
        return True

    def stop(self, request: dict[str, Any]) -> bool:
        self._consumers[request["consumer"]].shutdown()
        return True


def _sign(client: Any) -> None:
    """Have a producer or consumer sign its requests, if there is a user."""
    if user := os.environ.get("INTEROP_USER"):
        client.set_session_credentials(user, os.environ["INTEROP_SECRET"], "")


def _message(request: dict[str, Any], fields: dict[str, Any]) -> Any:
    message = Message(request["topic"])
    body = base64.b64decode(fields["body"])
    dll.SetByteMessageBody(message, body, len(body))
    if fields["tag"]:
        message.set_tags(fields["tag"])
    if fields["keys"]:
        message.set_keys(fields["keys"])
    for name, value in fields["properties"].items():
        message.set_property(name, value)
    if "delayLevel" in request:
        message.set_delay_time_level(request["delayLevel"])
    return message


def _sent_async(producer: Any, messages: list[Any]) -> list[Any]:
    results: list[Any] = [None] * len(messages)
    done = threading.Semaphore(0)

    def note(number: int, result: Any) -> None:
        results[number] = result
        done.release()

    for number, message in enumerate(messages):
        producer.send_async(
            message,
            lambda result, number=number: note(number, result),
            lambda error, number=number: note(number, error),
        )
    for _ in messages:
        done.acquire()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _described(message: Any) -> dict[str, object]:
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "offset": message.queue_offset,
        "id": message.id,
        "body": base64.b64encode(message.body).decode(),
        "tag": _text(message.tags),
        "keys": _text(message.keys),
        "properties": {
            name: _text(message.get_property(name))
            for name in ("colour", "größe", "blank", "sign", *(f"p{n}" for n in range(1, 40)))
            if message.get_property(name)
        },
        "times": message.reconsume_times,
    }


def _text(value: bytes | None) -> str | None:
    return value.decode() if value else None


if __name__ == "__main__":
    driver = Driver(sys.argv[1])
    run({"produce": driver.produce, "consume": driver.consume, "stop": driver.stop})
