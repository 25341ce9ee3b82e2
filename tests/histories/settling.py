"""The end of a history: everything that is still to come comes, the members leave, and the broker is read from end to
end.

What is waited for is what must come. A deadline ends the waiting; the judges say what is missing.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any, Final

from histories import terms
from histories.clients import Clients
from histories.history import Event, Tail
from histories.terms import Body
from reput_client.blocking import Admin, PullConsumer
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ReputError
from reput_protocol.names import dlq_topic, retry_topic

_LOOK_S: Final = 0.3
_WATCH_S: Final = 0.5
AUDITED: Final = (*terms.TOPICS, *(name for group in terms.GROUPS for name in (retry_topic(group), dlq_topic(group))))
"""All topics that there may be."""


class Settled:
    """Follows a history as it grows: whether everything that was put is done with."""

    def __init__(self, scene: Clients) -> None:
        self._scene = scene
        self._tail = Tail(scene.events)
        self._puts: dict[str, tuple[str, str]] = {}
        self._acked: set[str] = set()
        self._weak: set[str] = set()
        """Puts to a cluster whose acknowledgement a failover may take back."""
        self._handled: dict[str, set[str]] = defaultdict(set)
        self._last_activity = time.monotonic()

    def _follow(self) -> None:
        for event in self._tail.new():
            self._take(event)

    def _take(self, event: Event) -> None:
        match event.what:
            case "put":
                self._puts[event["uid"]] = (event["topic"], event["kind"])
                if event.get("ack", AckLevel.REPLICATED) != AckLevel.REPLICATED:
                    self._weak.add(event["uid"])
            case "acked":
                if event["uid"] not in self._weak:
                    self._acked.add(event["uid"])
            case "handled":
                self._handled[event["group"]].add(event["uid"])
                self._last_activity = event.at
            case "begun" | "raised" | "back" | "backed" | "back-failed":
                self._last_activity = event.at

    def missing(self) -> list[str]:
        """Return what is still to come, in words; at most a few of them."""
        self._follow()
        found = []
        for uid in self._acked:
            topic, kind = self._puts[uid]
            for group, topics in terms.GROUPS.items():
                dies = kind == terms.POISON and group != terms.BYSTANDER
                if topic in topics and kind not in terms.ROLLED_BACK and not dies and uid not in self._handled[group]:
                    found.append(f"{uid} {kind} in {group}")
        return found[:5] or self._missing_at_broker()

    def _missing_at_broker(self) -> list[str]:
        with Admin(self._scene.address, timeout_s=10.0) as admin:
            found = [
                f"messages that wait for {topic}"
                for topic in (terms.LATER, *map(retry_topic, terms.GROUPS))
                if admin.list_delayed(topic=topic, max_messages=1)
            ]
            there = set(admin.list_topics())
            for group, topics in terms.GROUPS.items():
                with PullConsumer(self._scene.address, group=group, timeout_s=10.0) as consumer:
                    for topic in (*topics, retry_topic(group)):
                        for queue_id in range(terms.TOPICS.get(topic, 1)) if topic in there else ():
                            end = consumer.max_offset(topic, queue_id)
                            if (consumer.committed(topic, queue_id) or 0) < end:
                                found.append(f"commit of {topic}/{queue_id} by {group} up to {end}")
        if not found and time.monotonic() - self._last_activity < 1.0:
            found.append("a quiet second")
        return found


class CommitWatch:
    """A thread that looks at all groups' offsets now and then, and writes them down."""

    def __init__(self, scene: Clients) -> None:
        self._scene = scene
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commit-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        consumers = {group: PullConsumer(self._scene.address, group=group, timeout_s=5.0) for group in terms.GROUPS}
        for consumer in consumers.values():
            consumer.__enter__()
        while not self._over.wait(_WATCH_S):
            for group, consumer in consumers.items():
                for topic in (*terms.GROUPS[group], retry_topic(group)):
                    for queue_id in range(terms.TOPICS.get(topic, 1)):
                        self._look(consumer, group, topic, queue_id)
        for consumer in consumers.values():
            consumer.close()

    def _look(self, consumer: PullConsumer, group: str, topic: str, queue_id: int) -> None:
        asked = time.monotonic()
        try:
            offset = consumer.committed(topic, queue_id)
        except ReputError:
            return  # the broker is down, or there is no such topic yet
        self._scene.recorder.note(
            "offset", group=group, topic=topic, queue=queue_id, offset=offset, asked=round(asked, 6)
        )

    def stop(self) -> None:
        """End it."""
        self._over.set()
        self._thread.join(30.0)


def settle(scene: Clients, deadline_s: float) -> None:
    """Stop the producers, wait for pending messages, and stop all members."""
    settled = Settled(scene)
    if scene.producer is not None:
        scene.until_it_listens(scene.producer)
        scene.producer.process.terminate()  # it continues to answer checks
    scene.recorder.note("settling")
    until = time.monotonic() + deadline_s
    missing = ["everything"]
    while missing and time.monotonic() < until:
        time.sleep(_LOOK_S)
        scene.watch_for_failures()
        try:
            missing = settled.missing()
        except ReputError as error:
            missing = [str(error)]
    scene.recorder.note("settled", missing=missing)
    producers = [scene.producer] if scene.producer is not None else []
    scene.leave(*scene.members, *producers)


def audit(scene: Clients) -> None:
    """Write down every message of every topic as the broker has it now."""
    with (
        Admin(scene.address, timeout_s=30.0) as admin,
        PullConsumer(scene.address, group="auditor", timeout_s=30.0) as consumer,
    ):
        there = set(admin.list_topics())
        for topic in AUDITED:
            for queue_id in range(terms.TOPICS.get(topic, 1)) if topic in there else ():
                _read_queue(scene, consumer, topic, queue_id)


def _read_queue(scene: Clients, consumer: PullConsumer, topic: str, queue_id: int) -> None:
    offset = 0
    while True:
        result: Any = consumer.pull(topic, queue_id=queue_id, offset=offset, max_messages=512, wait_s=0.0)
        for message in result.messages:
            body = Body.of(message.body)
            scene.recorder.note(
                "stored",
                topic=topic,
                queue=queue_id,
                offset=message.queue_offset,
                uid=body.uid,
                kind=body.kind,
                attempt=message.reconsume_times,
                stored_ms=message.store_timestamp_ms,
            )
        if result.next_begin_offset <= offset:
            return
        offset = result.next_begin_offset
