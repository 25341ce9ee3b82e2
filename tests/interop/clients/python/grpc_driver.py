"""RocketMQ's gRPC client for Python as a driver of the interop suite; `interop/client.py` has the lines.

It runs in a virtual environment of its own, without Reput. The address is that of a proxy.
"""

from __future__ import annotations

import base64
import functools
import os
import sys
import threading
import time
from typing import Any

import rocketmq
from lines import handler, run, say
from rocketmq.grpc_protocol import Code, FilterType
from rocketmq.v5.client.connection.rpc_client import RpcClient


class Checker(rocketmq.TransactionChecker):
    """Commits what the broker asks about."""

    def check(self, message: Any) -> Any:
        """Decide about a half message."""
        return rocketmq.TransactionResolution.COMMIT


class Driver:
    """Its producers and consumers."""

    def __init__(self, address: str) -> None:
        self._tls = "INTEROP_CA" in os.environ
        user = rocketmq.Credentials(os.environ.get("INTEROP_USER", ""), os.environ.get("INTEROP_SECRET", ""))
        self._configuration = rocketmq.ClientConfiguration(address, user, request_timeout=30)
        self._producers: dict[str, Any] = {}
        self._consumers: dict[str, Any] = {}
        self._made = threading.Lock()

    def _producer(self, topic: str, *, checks: bool) -> Any:
        """A producer, which this client makes for given topics."""
        with self._made:
            if topic not in self._producers:
                checker = Checker() if checks else None
                producer = rocketmq.Producer(self._configuration, (topic,), checker, self._tls)
                producer.startup()
                self._producers[topic] = producer
            return self._producers[topic]

    def produce(self, request: dict[str, Any]) -> list[dict[str, object]]:
        producer = self._producer(request["topic"], checks=request["how"] == "transaction")
        messages = [_message(request, fields) for fields in request["messages"]]
        match request["how"]:
            case "sync" | "orderly":
                receipts = [producer.send(message) for message in messages]
            case "async":
                receipts = [each.result() for each in [producer.send_async(message) for message in messages]]
            case "transaction":
                for message in messages:
                    transaction = producer.begin_transaction()
                    producer.send(message, transaction)
                    match message.properties["decision"]:
                        case "commit":
                            transaction.commit()
                        case "rollback":
                            transaction.rollback()
                return []
            case how:
                raise ValueError(how)
        return [{"id": each.message_id, "offset": each.offset, "recallHandle": each.recall_handle} for each in receipts]

    def recall(self, request: dict[str, Any]) -> bool:
        self._producer(request["topic"], checks=False).recall_message(request["topic"], request["handle"])
        return True

    def consume(self, request: dict[str, Any]) -> bool:
        if "sql" in request:
            wanted = rocketmq.FilterExpression(request["sql"], FilterType.SQL)
        else:
            wanted = rocketmq.FilterExpression(request.get("tags", "*"))
        listener = Listener(request)
        if request["how"] == "simple":
            consumer = rocketmq.SimpleConsumer(
                self._configuration,
                request["group"],
                {request["topic"]: wanted},
                await_duration=5,
                tls_enable=self._tls,
            )
            consumer.startup()
            invisible_s = request.get("invisibleMs", 60_000) // 1000
            threading.Thread(target=_receive, args=(consumer, listener, invisible_s), daemon=True).start()
        else:
            consumer = rocketmq.PushConsumer(
                self._configuration, request["group"], listener, {request["topic"]: wanted}, tls_enable=self._tls
            )
            consumer.startup()
        self._consumers[request["consumer"]] = consumer
        return True

    def stop(self, request: dict[str, Any]) -> bool:
        self._consumers.pop(request["consumer"]).shutdown()
        return True


class Listener(rocketmq.MessageListener):
    """Says what a consumer receives."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._succeeds = handler(request)

    def consume(self, message: Any) -> Any:
        """Take one delivery."""
        results = rocketmq.ConsumeResult
        return results.SUCCESS if self._succeeds(_described(message)) else results.FAILURE


def _report_acknowledgements() -> None:
    """Have each request to acknowledge, also of push consumers, reported with its answer."""
    ask = RpcClient.ack_message_async

    @functools.wraps(ask)
    def ask_and_report(self: Any, endpoints: Any, request: Any, *more: Any, **named: Any) -> Any:
        asked_ms = _now_ms()

        def report(done: Any) -> None:
            error = done.exception()
            outcomes = {entry.receipt_handle: repr(error) for entry in request.entries}
            if error is None:
                response = done.result()
                outcomes = dict.fromkeys(outcomes, Code.Name(response.status.code))
                outcomes |= {each.receipt_handle: Code.Name(each.status.code) for each in response.entries}
            times = {"askedMs": asked_ms, "answeredMs": _now_ms()}
            say({"event": "acknowledged", "group": request.group.name, **times, "outcomes": outcomes})

        answer = ask(self, endpoints, request, *more, **named)
        answer.add_done_callback(report)
        return answer

    RpcClient.ack_message_async = ask_and_report


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _receive(consumer: Any, listener: Listener, invisible_s: int) -> None:
    """Handle what a simple consumer receives, until it has ended."""
    while consumer.is_running:
        try:
            for message in consumer.receive(16, invisible_s) or ():
                if listener.consume(message) == rocketmq.ConsumeResult.SUCCESS:
                    consumer.ack(message)
                else:
                    consumer.change_invisible_duration(message, 1)
        except Exception as error:
            # The first time, if the proxy does not have the consumer's settings yet; later, if the proxy is away.
            print(repr(error), file=sys.stderr)
            time.sleep(0.5)


def _message(request: dict[str, Any], fields: dict[str, Any]) -> Any:
    message = rocketmq.Message()
    message.topic = request["topic"]
    message.body = base64.b64decode(fields["body"])
    if fields["tag"]:
        message.tag = fields["tag"]
    for key in (fields["keys"] or "").split():
        message.keys = key
    for name, value in fields["properties"].items():
        message.add_property(name, value)
    if request["how"] == "orderly":
        message.message_group = request["key"]
    if "delayMs" in request:
        message.delivery_timestamp = int(time.time()) + request["delayMs"] // 1000 + 1
    if "priority" in request:
        message.priority = request["priority"]
    return message


def _described(message: Any) -> dict[str, object]:
    return {
        "topic": message.topic,
        # A gRPC client gets no place in a queue.
        "queueId": -1,
        "offset": -1,
        "id": message.message_id,
        "body": base64.b64encode(message.body).decode(),
        "tag": message.tag,
        "keys": " ".join(sorted(message.keys)),
        "properties": dict(message.properties),
        "times": message.delivery_attempt - 1,
        "receipt": message.receipt_handle,
    }


if __name__ == "__main__":
    _report_acknowledgements()
    driver = Driver(sys.argv[1])
    run({"produce": driver.produce, "recall": driver.recall, "consume": driver.consume, "stop": driver.stop})
