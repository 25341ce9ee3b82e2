"""Reput's own Python client as a driver of the interop suite; `interop/client.py` has the lines."""

from __future__ import annotations

import base64
import os
import sys
import threading
from contextlib import suppress
from typing import Any

from lines import handler, run

from reput_client.blocking import (
    TLS,
    Consumer,
    Credentials,
    GiveBack,
    Message,
    Producer,
    ReceivedMessage,
    RetryHere,
    TransactionProducer,
    TransactionState,
)
from reput_client.errors import ClientClosed

_TIMEOUT_S = 60.0
_DECISIONS = {"commit": TransactionState.COMMIT, "rollback": TransactionState.ROLLBACK}


class Driver:
    """Its producers and consumers."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._tls = TLS(ca=os.environ["INTEROP_CA"]) if "INTEROP_CA" in os.environ else None
        self._credentials = (
            Credentials(os.environ["INTEROP_USER"], os.environ["INTEROP_SECRET"])
            if "INTEROP_USER" in os.environ
            else None
        )
        self._producer = Producer(
            address, group="interop-reput", timeout_s=_TIMEOUT_S, tls=self._tls, credentials=self._credentials
        )
        self._transactions: TransactionProducer | None = None
        self._consumers: dict[str, Consumer] = {}
        self._made = threading.Lock()

    def produce(self, request: dict[str, Any]) -> list[dict[str, object]]:
        messages = [_message(request, fields) for fields in request["messages"]]
        producer = self._producer
        match request["how"]:
            case "sync":
                receipts = [producer.send(message) for message in messages]
            case "async":
                posted = [producer.post(message) for message in messages]
                producer.flush()
                receipts = [each.result() for each in posted]
            case "one-way":
                for message in messages:
                    producer.send_oneway(message)
                return []
            case "batch":
                receipts = producer.send_batch(messages)
            case "orderly":
                receipts = [producer.send(message, ordering_key=request["key"]) for message in messages]
            case "transaction":
                for message in messages:
                    decision = _DECISIONS.get(message.properties["decision"], TransactionState.UNKNOWN)
                    self._transactional().send_in_transaction(message, lambda _, decision=decision: decision)  # type: ignore[misc]
                return []
            case how:
                raise ValueError(how)
        return [{"id": each.message_id, "queueId": each.queue_id, "offset": each.queue_offset} for each in receipts]

    def _transactional(self) -> TransactionProducer:
        with self._made:
            if self._transactions is None:
                self._transactions = TransactionProducer(
                    self._address,
                    group="interop-reput-transactions",
                    check=lambda _: TransactionState.COMMIT,
                    timeout_s=_TIMEOUT_S,
                    tls=self._tls,
                    credentials=self._credentials,
                )
            return self._transactions

    def request(self, request: dict[str, Any]) -> str:
        message = Message(request["topic"], base64.b64decode(request["body"]))
        return base64.b64encode(self._producer.request(message).body).decode()

    def consume(self, request: dict[str, Any]) -> bool:
        orderly = request["how"] == "orderly"
        consumer = Consumer(
            self._address,
            group=request["group"],
            topic=request["topic"],
            tags=request.get("tags", "*"),
            sql=request.get("sql"),
            mode="broadcasting" if request["how"] == "broadcasting" else "clustering",
            orderly=orderly,
            on_failure=RetryHere(after_s=0.1) if orderly else GiveBack(1, request.get("maxTimes")),
            instance=request["consumer"],
            timeout_s=_TIMEOUT_S,
            tls=self._tls,
            credentials=self._credentials,
        )
        consumer.__enter__()
        self._consumers[request["consumer"]] = consumer
        threading.Thread(target=self._run, args=(consumer, request), daemon=True).start()
        return True

    def _run(self, consumer: Consumer, request: dict[str, Any]) -> None:
        succeeds = handler(request)

        def handle(message: ReceivedMessage) -> None:
            if request.get("reply"):
                self._producer.reply(message, b"reply to " + message.body)
            if not succeeds(_described(message)):
                raise RuntimeError("this delivery is to fail")

        with suppress(ClientClosed):
            consumer.run(handle)

    def stop(self, request: dict[str, Any]) -> bool:
        self._consumers.pop(request["consumer"]).close()
        return True


def _message(request: dict[str, Any], fields: dict[str, Any]) -> Message:
    return Message(
        request["topic"],
        base64.b64decode(fields["body"]),
        tag=fields["tag"],
        keys=fields["keys"].split(" ") if fields["keys"] else (),
        properties=fields["properties"],
        delay_level=request.get("delayLevel"),
        delay_s=request["delayMs"] / 1000 if "delayMs" in request else None,
    )


def _described(message: ReceivedMessage) -> dict[str, object]:
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "offset": message.queue_offset,
        "id": message.message_id,
        "body": base64.b64encode(message.body).decode(),
        "tag": message.tag,
        "keys": " ".join(message.keys),
        "properties": message.properties,
        "times": message.reconsume_times,
    }


if __name__ == "__main__":
    driver = Driver(sys.argv[1])
    run({"produce": driver.produce, "consume": driver.consume, "stop": driver.stop, "request": driver.request})
