"""The clients that all threads of a process share for the result backend, and the results that come for the threads.

Celery makes a backend for each thread that calls tasks, and does not tell when the thread has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final
from weakref import WeakSet

from reput_client.blocking import PullConsumer
from reput_client.errors import ClientClosed
from reput_client.tasks.process_clients import PerProcess, ProcessClients
from reput_client.transport.backoff import Backoff
from reput_protocol.codes import Ack
from reput_protocol.errors import ReputError
from reput_protocol.filter.tags import TAGS_MAX
from reput_protocol.record.message import MessageQueue

_KEPT: Final = 8192
"""How many results wait for one that does not ask for them; older ones have to be looked up."""
_TAGS: Final = 64
"""With more tags, those of threads that have ended are read no more. Their ids are often those of new threads."""
_WAIT_S: Final = 15.0
_PAUSE_S: Final = 1.0
_PAUSE_MAX_S: Final = 15.0

log = logging.getLogger("reput_client")


class Mailbox:
    """Results that have come and are not handled. Any thread may add, and any may take."""

    def __init__(self) -> None:
        self._bodies: deque[bytes] = deque(maxlen=_KEPT)
        self._condition = threading.Condition()

    def add(self, bodies: Iterable[bytes]) -> None:
        """Add results."""
        with self._condition:
            self._bodies.extend(bodies)
            self._condition.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait until there is something, or for `timeout_s`."""
        with self._condition:
            self._condition.wait_for(lambda: self._bodies, timeout_s)

    def take(self) -> bytes | None:
        """Return a result, or None if there is none now."""
        with self._condition:
            return self._bodies.popleft() if self._bodies else None


class Arrivals:
    """Reads the results with certain tags, in one thread for each broker of the topic.

    A mailbox that is garbage gets nothing more.
    """

    def __init__(self, topic: str, options: Mapping[str, Any]) -> None:
        self._topic = topic
        self._options = options
        self._lock = threading.Lock()
        self._mailboxes: dict[str, WeakSet[Mailbox]] = {}
        self._tags: frozenset[str] = frozenset()
        self._from: dict[MessageQueue, int] = {}
        self._puller: PullConsumer[bytes] | None = None

    def close(self) -> None:
        """Read no more."""
        with self._lock:
            puller, self._puller = self._puller, None
            self._mailboxes.clear()
            self._tags = frozenset()
            self._from.clear()
        if puller is not None:
            puller.close()

    def deliver_to(self, mailbox: Mailbox, tag: str) -> None:
        """Put what comes with a tag from now on into a mailbox; the topic exists.

        Raises:
            ReputError: no broker answers.
        """
        with self._lock:
            self._mailboxes.setdefault(tag, WeakSet()).add(mailbox)
            if tag not in self._tags:
                tags = self._tags | {tag}
                if len(tags) > _TAGS:
                    self._mailboxes = {each: boxes for each, boxes in self._mailboxes.items() if boxes}
                    tags = frozenset(self._mailboxes)
                self._read(tags)

    def _read(self, tags: frozenset[str]) -> None:
        """Go on with other tags; a pull that is under way would pass over what has a new one."""
        puller: PullConsumer[bytes] = PullConsumer(group="celery-results", **self._options)
        puller.__enter__()
        try:
            if not self._from:
                self._from = {
                    queue: puller.max_offset(queue.topic, queue.queue_id, broker_name=queue.broker_name)
                    for queue in puller.queues(self._topic)
                }
        except BaseException:
            puller.close()
            raise
        before, self._puller, self._tags = self._puller, puller, tags
        if before is not None:
            before.close()
        # Of more threads than a broker allows tags, this reads all results, and drops those of other programs.
        wanted = "||".join(tags) if len(tags) <= TAGS_MAX else "*"
        for queue in self._from:
            threading.Thread(
                target=self._run, args=(puller, queue, wanted), name="reput-results", daemon=True
            ).start()

    def _run(self, puller: PullConsumer[bytes], queue: MessageQueue, tags: str) -> None:
        topic, broker_name, queue_id = queue
        offset = self._from[queue]
        pauses = Backoff(_PAUSE_S, _PAUSE_MAX_S)
        is_away = False
        while True:
            try:
                result = puller.pull(
                    topic, queue_id, offset, wait_s=_WAIT_S, tags=tags, broker_name=broker_name
                )
            except ClientClosed:
                return
            except ReputError as error:
                if self._puller is not puller:
                    return
                if not is_away:
                    log.error("no results are received until the broker is back: %s", error)
                is_away = True
                time.sleep(pauses.next_delay_s())
                continue
            if is_away:
                log.info("results are received again")
                is_away = False
                pauses.reset()
            found: dict[str, list[bytes]] = {}
            for message in result.messages:
                found.setdefault(message.tag or "", []).append(message.body)
            with self._lock:
                if self._puller is not puller:
                    return  # the next reader gets the same
                offset = self._from[queue] = result.next_begin_offset
                self._deliver(found)

    def _deliver(self, found: Mapping[str, list[bytes]]) -> None:
        # A function of its own: a reader's frame would hold its last mailbox until the next message.
        for tag, bodies in found.items():
            for mailbox in self._mailboxes.get(tag, ()):
                mailbox.add(bodies)


class SharedClients(ProcessClients):
    """They are connected on first use, until `close_clients` or the end of the process. Any thread may use them."""

    def __init__(self, topic: str, ack: Ack, options: Mapping[str, Any]) -> None:
        super().__init__(options, group="celery-results", ack=ack)
        self.arrivals = Arrivals(topic, options)

    def close(self) -> None:
        """Disconnect."""
        self.arrivals.close()
        super().close()


_process: Final[PerProcess[SharedClients]] = PerProcess()


def shared_clients(key: Hashable, topic: str, ack: Ack, options: Mapping[str, Any]) -> SharedClients:
    """Return this process's clients for `key`, which stands for all arguments."""
    return _process.get(key, lambda: SharedClients(topic, ack, options))


def close_clients() -> None:
    """Disconnect what the result backends of this process have; the next use of a backend connects again.

    Results that are waited for meanwhile are not received any more, but looked up each second.
    """
    _process.close()
