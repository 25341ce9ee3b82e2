"""A topic with a producer, a group whose members join and leave, and the conditions at the end.

Every message is handled, of an orderly group in its queue's order; no commit ever goes back; in the end everything is
committed.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_client.errors import SendOutcomeUnknown
from reput_protocol.errors import ReputError
from support.group_member import Event, MemberProcess
from support.waiting import wait_until

QUEUES = 8
_SEND_PAUSE_S = 0.005
_LOOK_S = 0.05
_NUMBERS = itertools.count()


class GroupScene:
    """Sends from its beginning on; `member` starts members, `finish` ends and checks everything.

    A context manager: its end leaves no process and no thread behind.
    """

    def __init__(self, address: str, directory: Path, *options: str) -> None:
        number = next(_NUMBERS)
        self.topic, self.group = f"topic{number}", f"group{number}"
        self.members: list[MemberProcess] = []
        self.sent: list[str] = []
        self.backwards: list[str] = []
        self._address = address
        self._directory = directory
        self._options = options
        self._over = threading.Event()
        with Admin(address, timeout_s=30.0) as admin:
            admin.create_topic(self.topic, queues=QUEUES)
        self._threads = [threading.Thread(target=work) for work in (self._send, self._watch_commits)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for member in self.members:
            member.kill()
        for thread in self._threads:
            thread.join(60)

    def _send(self) -> None:
        with Producer(self._address, timeout_s=30.0) as producer:
            for number in itertools.count():
                if self._over.is_set():
                    return
                body = f"{self.topic}-{number}"
                with suppress(SendOutcomeUnknown):  # the broker was killed over it
                    producer.send(Message(self.topic, body.encode()), queue_id=number % QUEUES)
                    self.sent.append(body)
                time.sleep(_SEND_PAUSE_S)

    def _watch_commits(self) -> None:
        highest: dict[int, int] = {}
        with PullConsumer(self._address, group=self.group, timeout_s=30.0) as consumer:
            while not self._over.wait(_LOOK_S):
                for queue_id in range(QUEUES):
                    offset = consumer.committed(self.topic, queue_id) or 0
                    if offset < highest.get(queue_id, 0):
                        self.backwards.append(f"queue {queue_id} from {highest[queue_id]} to {offset}")
                    highest[queue_id] = offset

    def member(self, *options: str) -> MemberProcess:
        """Start one more member."""
        report = self._directory / f"{self.group}-{len(self.members)}.txt"
        member = MemberProcess(self._address, self.group, self.topic, report, *self._options, *options)
        self.members.append(member)
        return member

    def until_shared_by(self, *members: MemberProcess, deadline_s: float = 30.0) -> None:
        """Wait until each queue has exactly one owner among `members`, and each of them its share."""
        share = QUEUES // len(members)

        def is_shared() -> bool:
            queues = [member.queues() for member in members]
            fair = all(share <= len(own) <= share + 1 for own in queues)
            return fair and sorted(itertools.chain(*queues)) == list(range(QUEUES))

        self.until(is_shared, deadline_s)

    def until(self, condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
        """Wait for something."""
        wait_until(condition, deadline_s, what=self._story)

    def _story(self) -> str:
        missing = set(self.sent) - {event.body for event in self.handled()}
        members = "\n".join(f"{m.path.name} has {m.queues()}\n{m.log()[-2000:]}" for m in self.members)
        return f"{len(self.sent)} sent, not handled {sorted(missing)[:10]}\n{members}"

    def finish(self) -> list[Event]:
        """Stop sending, let everything be handled, end the members; return what was handled, in order of time."""
        self._over.set()
        for thread in self._threads:
            thread.join(40)
        self.until(lambda: {event.body for event in self.handled()} >= set(self.sent), 60.0)
        running = [member for member in self.members if member.process.poll() is None]
        for member in running:
            assert member.end() == 0, member.log()
        assert self.backwards == []
        with PullConsumer(self._address, group=self.group, timeout_s=30.0) as consumer:
            for queue_id in range(QUEUES):
                with suppress(ReputError):
                    committed = consumer.committed(self.topic, queue_id)
                    assert committed == consumer.max_offset(self.topic, queue_id), queue_id
        return self.handled()

    def handled(self) -> list[Event]:
        """Return what all members have handled, in order of time."""
        return sorted((e for member in self.members for e in member.handled()), key=lambda event: event.at)


def handled_twice(events: list[Event]) -> set[str]:
    """Return the messages that were handled more than once."""
    return {body for body, count in Counter(event.body for event in events).items() if count > 1}


def begun_by(*members: MemberProcess) -> set[str]:
    """Return the messages that were in these members' hands."""
    return {event.body for member in members for event in member.events() if event.kind == "begun"}


def check_order(events: list[Event]) -> None:
    """No message was handled before all that come ahead of it in its queue."""
    next_offset: dict[int, int] = defaultdict(int)
    for event in events:
        assert event.offset <= next_offset[event.queue_id], f"{event} comes too early"
        next_offset[event.queue_id] = max(next_offset[event.queue_id], event.offset + 1)
