"""A topic whose messages a group pops: its producer, its members, and the judge of what they are promised.

A member acknowledges most messages, some of them late or after it has changed their time, and forgets the others.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import trio

from histories.history import Event
from histories.judge.facts import Facts
from histories.judge.violation import Violation
from reput_broker.remoting.client import RemoteUnreachable, RemotingClient
from reput_broker.remoting.request import ClientAnswer
from reput_client import Message, Producer
from reput_client.errors import AckNotReached, SendOutcomeUnknown
from reput_protocol.codes import AckLevel, RequestCode, ResponseCode
from reput_protocol.errors import ReputError
from support.pops import Popped, pop_fields, popped_messages

TOPIC: Final = "popped"
GROUP: Final = "poppers"
QUEUES: Final = 2
MEMBERS: Final = 2
QUIET_S: Final = 4.0
"""Longer than the longest invisible time."""
_INVISIBLE_MS: Final = (700, 1500, 3000)
_ENDS: Final = {"acks": 80, "forgets": 8, "is-late": 4, "changes": 8}
_TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 0.15
_PAUSE_AFTER_FAILURE_S: Final = 0.1

Note = Callable[..., float]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def produce(endpoints: str, ack: AckLevel, over: trio.Event, note: Note, chance: random.Random) -> None:
    """Send until `over`, and note what was acknowledged."""
    number = 0
    while not over.is_set():
        try:
            async with Producer(endpoints, timeout_s=_TIMEOUT_S, retries=0, deduplicate=False, ack=ack) as producer:
                while not over.is_set():
                    number += 1
                    began_ms = _now_ms()
                    note("pop-sends", uid=number)
                    try:
                        await producer.send(Message(TOPIC, b"%d" % number), queue_id=chance.randrange(QUEUES))
                        note("pop-sent", uid=number, began_ms=began_ms, ack=ack)
                    except (AckNotReached, SendOutcomeUnknown):
                        pass
                    await trio.sleep(chance.expovariate(1.0 / _PAUSE_S))
        except ReputError:
            await trio.sleep(_PAUSE_AFTER_FAILURE_S)


class Popper:
    """A member, which asks one broker after the other until one is the master."""

    def __init__(self, addresses: Sequence[str], note: Note, chance: random.Random) -> None:
        self._addresses = addresses
        self._note = note
        self._chance = chance

    async def run(self) -> None:
        """Pop for ever."""
        while True:
            for address in self._addresses:
                client = RemotingClient(address)
                try:
                    while await self._pop(client):
                        pass
                except RemoteUnreachable:
                    pass
                finally:
                    client.close()
                await trio.sleep(_PAUSE_AFTER_FAILURE_S)

    async def _pop(self, client: RemotingClient) -> bool:
        """Pop once; return whether to stay with this broker."""
        fields = pop_fields(
            GROUP,
            TOPIC,
            maxMsgNums="4",
            pollTime="500",
            invisibleTime=str(self._chance.choice(_INVISIBLE_MS)),
            bornTime=str(_now_ms()),
        )
        answer = await client.call(RequestCode.POP_MESSAGE, fields, timeout_s=_TIMEOUT_S)
        if answer.code != 0:
            return answer.code == ResponseCode.POLLING_TIMEOUT
        found = popped_messages(answer.ext, answer.body)
        for one in found:
            self._note_of("popped", one, broker=client.address)
        for one in found:
            await self._end(client, one)
        return True

    def _note_of(self, what: str, one: Popped, **facts: str) -> None:
        self._note(
            what,
            uid=int(one.record.body),
            attempt=one.record.reconsume_times,
            pop_ms=one.handle.pop_time,
            wall_ms=_now_ms(),
            handle=str(one.handle),
            **facts,
        )

    async def _end(self, client: RemotingClient, one: Popped) -> None:
        how = self._chance.choices([*_ENDS], [*_ENDS.values()])[0]
        if how == "forgets":
            return
        if how == "is-late":
            await trio.sleep(self._chance.uniform(0.5, 3.5))
        if how == "changes":
            changed = await self._change(client, one)
            if changed is None:
                return
            one = changed
        self._note_of("pop-acks", one)
        answer = await self._ask(client, RequestCode.ACK_MESSAGE, one)
        # The clock of the brokers is this one's.
        if answer.code == 0 and _now_ms() < one.handle.pop_time + one.handle.invisible_time:
            self._note_of("pop-done", one)

    async def _ask(self, client: RemotingClient, code: RequestCode, one: Popped, **more: str) -> ClientAnswer:
        fields = {**one.ack_fields(GROUP, TOPIC), **more}
        return await client.call(code, fields, timeout_s=_TIMEOUT_S)

    async def _change(self, client: RemotingClient, one: Popped) -> Popped | None:
        """Return the message with its new handle; None if it has none, or was visible before."""
        self._note_of("pop-changes", one)
        answer = await self._ask(client, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, one, invisibleTime="2000")
        if answer.code != 0 or _now_ms() >= one.handle.pop_time + one.handle.invisible_time:
            return None
        self._note_of("pop-changed", one)
        return one.changed(answer.ext)


def missing(events: Sequence[Event]) -> list[int]:
    """Return the messages that were sent, or popped although the send was not answered, and that no member has
    tried to acknowledge: without an answer, or too late, that may have been of effect.
    """
    there = {event["uid"]: None for event in events if event.what in ("pop-sent", "popped")}
    acknowledged = {event["uid"] for event in events if event.what == "pop-acks"}
    return [uid for uid in there if uid not in acknowledged]


async def settle(events: Sequence[Event], deadline_s: float) -> None:
    """Wait until all is done, then until everything that was ever popped would be visible again."""
    with trio.move_on_after(deadline_s):
        while missing(events):
            await trio.sleep(0.5)
        await trio.sleep(QUIET_S)


class _Excused:
    """The messages that may be popped after they were acknowledged.

    A master that dies may have popped any message that is not acknowledged, without an answer, and have the check point
    but not the offset; after a power cut its offsets may be older than any check point. If it stays the master, both
    are of effect, whenever it is asked again. Another master lacks what was not replicated: a replicated message that
    was sent after an acknowledgement shows that it has all before.
    """

    def __init__(self) -> None:
        self._sent, self._popped, self._uids, self._if_it_stays = (set[int](), set[int](), set[int](), set[int]())
        self._done: dict[int, Event] = {}
        self._replicated_ms = self._died_ms = 0
        self._master: str | None = None

    def __contains__(self, uid: int) -> bool:
        return uid in self._uids

    def note(self, event: Event) -> None:
        """Take the next event."""
        if event.what == "leads":
            if event["address"] == self._master:
                self._uids |= self._if_it_stays
            self._if_it_stays.clear()
            self._master = event["address"]
        elif event.what == "dies" and self._master in (None, event["of"]):
            self._if_it_stays |= self._sent - self._done.keys()
            self._died_ms = event["wall_ms"]
        elif event.what == "pop-sends":
            self._sent.add(event["uid"])
        elif event.what == "pop-sent" and event["ack"] == AckLevel.REPLICATED:
            self._replicated_ms = max(self._replicated_ms, event["began_ms"])
        elif event.what == "pop-done":
            self._done.setdefault(event["uid"], event)
        elif event.what == "may-lose" and "kept_by" in event.facts:
            self._uids |= {uid for uid in self._popped if not self._is_replicated(uid)}
        elif event.what == "may-lose" and event.get("of") is not None and "offsets" in event["levels"]:
            if self._master in (None, event["of"]):
                self._if_it_stays |= self._popped
                self._died_ms = event["stored_by"]
        elif event.what == "popped":
            self._note_popped(event)

    def _is_replicated(self, uid: int) -> bool:
        return uid in self._done and self._done[uid]["wall_ms"] < self._replicated_ms

    def _note_popped(self, event: Event) -> None:
        if event["pop_ms"] > self._died_ms:
            self._uids |= self._if_it_stays
            self._if_it_stays.clear()
        if self._master not in (None, event["broker"]):
            self._uids.add(event["uid"])
        self._popped.add(event["uid"])


def judge(events: Sequence[Event], facts: Facts) -> Iterator[Violation]:
    """Nothing is lost, and nothing is popped after it was acknowledged in time, but what `_Excused` has.

    What a master pops and acknowledges whose history an operator gives up counts for nothing.

    A time that was changed too late, or without an answer, may have made another check point of a message that was
    visible again: then it is delivered for both.
    """
    for uid in missing(events):
        yield Violation("popped lost", f"message {uid} was not popped until it was acknowledged")
    done: dict[int, Event] = {}
    excused = _Excused()
    changes = Counter(event["uid"] for event in events if event.what == "pop-changes")
    changes.subtract(event["uid"] for event in events if event.what == "pop-changed")
    for event in events:
        if event.what in ("popped", "pop-done") and facts.is_overruled(event.at):
            continue
        excused.note(event)
        if event.what == "pop-done":
            done.setdefault(event["uid"], event)
        elif event.what == "popped":
            before = done.get(event["uid"])
            is_again = before is not None and event["pop_ms"] > before["wall_ms"]
            if is_again and event["uid"] not in excused and not changes[event["uid"]]:
                yield Violation("popped again", f"{event}; {before}")


def counts(events: Sequence[Event]) -> Counter[str]:
    """Return how often what happened."""
    what = Counter(event.what for event in events)
    again = sum(event.what == "popped" and event["attempt"] > 0 for event in events)
    return Counter(popped=what["popped"], popped_done=what["pop-done"], popped_again=again)
