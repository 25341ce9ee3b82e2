"""The end of a simulation: what is still to come comes, the members leave, and the broker is read from end to end."""

from __future__ import annotations

import time
from typing import Any, Final

import trio

from histories import terms
from histories.terms import Body
from reput_client import Admin, PullConsumer
from reput_protocol.errors import ReputError
from reput_protocol.names import dlq_topic, retry_topic
from simulation.machines import BrokerMachine
from simulation.record import History
from simulation.scheduling import Process
from simulation.world import World

_QUIET_S: Final = 3.5
"""Longer than the longest delay or check is away."""
_TIMED_OUT_S: Final = (11.0, 31.0, 61.0)
"""Longer than until a message is redelivered whose handler was given up, by its number of redeliveries before."""
_LOST_S: Final = 10.0
"""Longer than until a message that is stored is in its topic, once nothing happens any more."""
_LOOK_S: Final = 0.5
_COPY_S: Final = 20.0
_READ_S: Final = 60.0
_ANSWERS: Final = {"acked", "not-reached", "unknown", "refused"}
_ACTIVITY: Final = {"begun", "handled", "raised", "back", "backed", "back-failed", "decided"} | _ANSWERS
AUDITED: Final = (*terms.TOPICS, *(name for group in terms.GROUPS for name in (retry_topic(group), dlq_topic(group))))


async def tables_are_copied(world: World) -> None:
    """Wait until every broker has the topics.

    A slave takes them over a second after they were made. One that becomes the master before that has only those of
    which there are messages, and only the queues that have some.
    """
    while not all(terms.TOPICS.keys() <= _topics_of(broker) for broker in world.brokers):
        await trio.sleep(_LOOK_S)


async def settle(world: World, deadline_s: float) -> None:
    """Wait until nothing has happened for a while and all that is stored is handled."""
    history = world.history
    history.note("settling")
    seen, last, redelivered_at, missing = 0, time.monotonic(), 0.0, {"everything": ""}
    lost: dict[str, str] = {}  # a judge says whether they may be
    looked_at = 0.0
    with trio.move_on_after(deadline_s):
        while missing or time.monotonic() < max(last + _QUIET_S, redelivered_at):
            await trio.sleep(_LOOK_S)
            found = [event for event in history.events[seen:] if event.what in _ACTIVITY]
            for event in found:
                if event.what in ("back", "backed") and event["group"] == terms.SHARED and event["level"] == 0:
                    redelivered_at = max(redelivered_at, event.at + _TIMED_OUT_S[event["attempt"]])
            if found:
                last, lost = time.monotonic(), {}
                missing = {"not looked at": ""}
            elif missing:
                missing = _missing(history)
                if time.monotonic() > max(last + _LOST_S, looked_at + _LOST_S, redelivered_at):
                    lost, looked_at = await _lost(world, missing), time.monotonic()
                missing = {text: uid for text, uid in missing.items() if text not in lost}
            seen = len(history.events)
    history.note("settled", missing=[*lost, *missing][:5])


async def _lost(world: World, missing: dict[str, str]) -> dict[str, str]:
    """Return the part of `missing` that no wait brings: its messages are in no topic, and all brokers have one log."""
    if len({_end_of(broker) for broker in world.brokers}) > 1:
        return {}
    stored = await _stored(world)
    if stored is None:
        return {}
    uids = {message["uid"] for message in stored}
    return {text: uid for text, uid in missing.items() if uid and uid not in uids}


def _missing(history: History) -> dict[str, str]:
    """Return what is not done, with the message."""
    puts: dict[str, tuple[str, str]] = {}
    there: dict[str, None] = {}  # acknowledged, or seen by a consumer although the put was not answered
    waits: dict[str, None] = {}  # being sent

    handled: dict[str, set[str]] = {group: set() for group in terms.GROUPS}
    for event in history.events:
        if event.what == "put":
            puts[event["uid"]] = (event["topic"], event["kind"])
            waits[event["uid"]] = None
        elif event.what in ("acked", "begun", "read"):
            there[event["uid"]] = None
        elif event.what == "handled":
            handled[event["group"]].add(event["uid"])
        if event.what in _ANSWERS:
            waits.pop(event["uid"], None)
    found = {f"{uid} is being sent": "" for uid in waits}
    for uid in there:
        topic, kind = puts[uid]
        for group, topics in terms.GROUPS.items():
            dies = kind == terms.POISON and group != terms.BYSTANDER
            if topic in topics and kind not in terms.ROLLED_BACK and not dies and uid not in handled[group]:
                found[f"{uid} {kind} in {group}"] = uid
    return found


async def leave(world: World) -> None:
    """Let all clients end in order; one that does not is a failure."""
    waiting = [client for client in world.clients if client.group and not client.is_gone]
    for client in waiting:
        world.history.note("asked-to-leave", process=client.process.name)
        client.leaving.set()
    with trio.move_on_after(30.0):
        while not all(client.is_gone for client in waiting):
            await trio.sleep(0.1)
    for client in waiting:
        if not client.is_gone:
            world.history.note("failed", process=client.process.name, log="it does not leave within 30 s")


async def audit(world: World) -> None:
    """Write down every message of every topic as the broker has it now."""
    found = await _stored(world)
    if found is None:
        world.history.note("failed", process="broker", log=f"it cannot be read within {_READ_S:g} s")
    for facts in found or ():
        world.history.note("stored", **facts)


async def _stored(world: World) -> list[dict[str, Any]] | None:
    """Return every message of every topic as the broker has it now; None if it cannot be read."""
    done = trio.Event()
    found: list[dict[str, Any]] = []

    async def run() -> None:
        while not done.is_set():
            try:
                found.clear()
                await _read_all(world.endpoints, found)
                done.set()
            except ReputError as error:
                world.log("warning", str(error))
                await trio.sleep(0.5)

    Process("auditor", "127.0.5.2").start(world.nursery, run)
    with trio.move_on_after(_READ_S):
        await done.wait()
    return found if done.is_set() else None


async def compare_logs(world: World) -> None:
    """Wait until every broker has the same log, and write down what each has."""
    with trio.move_on_after(_COPY_S):
        while len({_end_of(broker) for broker in world.brokers}) > 1:
            await trio.sleep(_LOOK_S)
    for broker in world.brokers:
        end = _end_of(broker)
        world.history.note("log", broker=broker.name, end=end, digest=broker.disk.log_digest(end))


def _end_of(broker: BrokerMachine) -> int:
    """Return the end of a broker's log; -1 while it has none open."""
    tenure = None if broker.broker is None else broker.broker._running
    return -1 if tenure is None or tenure.storage is None else tenure.storage.store.max_physical_offset


def _topics_of(broker: BrokerMachine) -> set[str]:
    tenure = None if broker.broker is None else broker.broker._running
    return set() if tenure is None or tenure.storage is None else set(tenure.storage.tables.topics.all())


async def _read_all(endpoints: str, found: list[dict[str, Any]]) -> None:
    async with (
        Admin(endpoints, timeout_s=5.0) as admin,
        PullConsumer(endpoints, group="auditor", timeout_s=5.0) as consumer,
    ):
        there = set(await admin.list_topics())
        for topic in AUDITED:
            for queue_id in range(terms.TOPICS.get(topic, 1)) if topic in there else ():
                await _read_queue(consumer, topic, queue_id, found)


async def _read_queue(consumer: PullConsumer, topic: str, queue_id: int, found: list[dict[str, Any]]) -> None:
    offset = 0
    while True:
        result = await consumer.pull(topic, queue_id=queue_id, offset=offset, max_messages=512, wait_s=0.0)
        for message in result.messages:
            body = Body.of(message.body)
            found.append(
                {
                    "topic": topic,
                    "queue": queue_id,
                    "offset": message.queue_offset,
                    "uid": body.uid,
                    "kind": body.kind,
                    "attempt": message.reconsume_times,
                    "stored_ms": message.store_timestamp_ms,
                }
            )
        if result.next_begin_offset <= offset:
            return
        offset = result.next_begin_offset
