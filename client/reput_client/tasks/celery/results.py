"""Celery's result backend on Reput.

A result is a message with the task's id as key, by which it is found; its tag is the program that has called the task,
which reads it when it comes. States come one after the other: what counts is SUCCESS if there is one, otherwise the
last. So a result is one send, and nothing is asked before. A result lives until `result_expires`, but no longer than
the broker keeps its log.

All threads of a process share the clients, and the results that come for the threads: Celery makes a backend for each
thread that calls tasks, and does not tell when the thread has ended.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property
from itertools import chain, takewhile
from typing import Any, Final
from weakref import WeakSet

from celery import states
from celery._state import task_join_will_block
from celery.backends.asynchronous import AsyncBackendMixin, BaseResultConsumer
from celery.backends.base import BaseKeyValueStoreBackend
from kombu.utils.encoding import bytes_to_str

from reput_client.blocking import PullConsumer
from reput_client.errors import ClientClosed
from reput_client.tasks.celery.clients import client_options
from reput_client.tasks.celery.topics import tag_of
from reput_client.tasks.shared import PerProcess, ProcessClients, result_that_counts
from reput_client.transport.backoff import Backoff
from reput_protocol.codes import Ack
from reput_protocol.errors import ReputError
from reput_protocol.filter.tags import TAGS_MAX
from reput_protocol.record.message import Message, MessageQueue

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
            threading.Thread(target=self._run, args=(puller, queue, wanted), name="reput-results", daemon=True).start()

    def _run(self, puller: PullConsumer[bytes], queue: MessageQueue, tags: str) -> None:
        topic, broker_name, queue_id = queue
        offset = self._from[queue]
        pauses = Backoff(_PAUSE_S, _PAUSE_MAX_S)
        is_away = False
        while True:
            try:
                result = puller.pull(topic, queue_id, offset, wait_s=_WAIT_S, tags=tags, broker_name=broker_name)
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


_TOPIC: Final = "celery-results"
_NO_CALLER: Final = tag_of("")
_FORGOTTEN: Final = "forgotten"
_LOOK_S: Final = 1.0
"""How often a result is looked up that another program's task or process has: nothing announces it here."""
_LOOKED_UP: Final = 50
"""How many results are looked up before one that waits sees whether its time is over."""
_LOOK_PAUSE: Final = 9
"""Looking up takes a tenth of the time, however many results there are."""


class ResultConsumer(BaseResultConsumer):
    """Handles the results of tasks that a thread has called, or several if the backend is theirs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._mailbox = Mailbox()
        self._callers: set[str] = set()
        self._to_look: deque[str] = deque()
        self._look_at = time.monotonic() + _LOOK_S
        self._looked_s = 0.0

    def _begin(self) -> None:
        if self._pid != os.getpid():  # Celery does not call `on_after_fork`
            self._forget()

    def start(self, initial_task_id: str, **kwargs: Any) -> None:
        """Receive from now on what this thread calls."""
        self.consume_from(initial_task_id)

    def consume_from(self, task_id: str) -> None:
        """Begin to receive what this thread calls, if this has not begun."""
        self._begin()
        caller = self.app.thread_oid
        if caller not in self._callers:
            clients = self.backend.clients
            clients.ensure_topic(self.backend.topic)
            clients.arrivals.deliver_to(self._mailbox, tag_of(caller))
            self._callers.add(caller)

    def cancel_for(self, task_id: str) -> None:
        """Do nothing: a result that nothing waits for is dropped."""

    def on_wait_for_pending(self, result: Any, **kwargs: Any) -> None:
        """Look whether results that are waited for are there already."""
        for meta in result._iter_meta(**kwargs):
            if meta is not None:
                self.on_state_change(meta, None)

    def drain_events(self, timeout: float | None = None) -> None:
        """Handle what has come within `timeout` seconds; look up the rest now and then."""
        self._begin()
        self._mailbox.wait(0.0 if self._to_look else _LOOK_S if timeout is None else timeout)
        while (body := self._mailbox.take()) is not None:
            meta = self.backend.decode_result(body) if body else {}
            if "task_id" in meta:
                self.on_state_change(meta, None)
        self._look()

    def _look(self) -> None:
        """Look up some of the results that are waited for, each in its turn."""
        began = time.monotonic()
        if not self._to_look:
            if began < self._look_at:
                return
            self._to_look.extend(dict.fromkeys(chain.from_iterable(map(list, self._pending_results))))
            self._looked_s = 0.0
        for _ in range(min(_LOOKED_UP, len(self._to_look))):
            task_id = self._to_look.popleft()
            if any(task_id in waiting for waiting in self._pending_results):
                meta = self.backend.get_task_meta(task_id, cache=False)
                if meta["status"] in states.READY_STATES:
                    self.on_state_change(meta, None)
        now = time.monotonic()
        self._looked_s += now - began
        self._look_at = now + max(_LOOK_S, _LOOK_PAUSE * self._looked_s)

    def stop(self) -> None:
        """Receive no more."""
        self._forget()

    def on_after_fork(self) -> None:
        """In a forked child: begin again."""
        self._forget()


class Backend(BaseKeyValueStoreBackend, AsyncBackendMixin):
    """The result backend `reput://host:port//`; docs/celery.md has its options.

    Chords are completed by Celery's task `celery.chord_unlock`.
    """

    ResultConsumer = ResultConsumer
    supports_autoexpire = True
    persistent = True

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        self.url = url
        super().__init__(app, url=url, **kwargs)
        options = dict(app.conf.get("result_backend_transport_options") or {})
        self.topic: str = options.get("topic", _TOPIC)
        self._ack = options.get("ack", "flushed")
        self._ssl = options.get("ssl", app.conf.broker_use_ssl)
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    @cached_property
    def client_options(self) -> dict[str, Any]:
        """The addresses and how to connect."""
        return client_options((self.url or "").split(";"), self._ssl)

    @property
    def clients(self) -> SharedClients:
        """Those of this process."""
        key = self.url, self.topic, self._ack, repr(self._ssl)
        return shared_clients(key, self.topic, self._ack, self.client_options)

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Whether storing or getting a result may be tried again (`result_backend_always_retry`)."""
        return isinstance(exc, (ReputError, OSError)) and not isinstance(exc, ClientClosed)

    # -- results -----------------------------------------------------------------------------------------------

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = bytes_to_str(task_id)
        caller = getattr(request, "reply_to", None)
        self._send(self.get_key_for_task(task_id), self.encode(meta), tag_of(caller or ""))
        return result

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Before a task is sent: read its result when it comes."""
        if not task_join_will_block():
            self.result_consumer.consume_from(task_id)

    def get(self, key: str | bytes) -> bytes | None:
        """Return the result that counts, or None if there is none or it has expired."""
        begin = None
        if self.expires:
            begin = max(0, round((time.time() - self.expires) * 1000))
        clients = self.clients
        clients.ensure_topic(self.topic)
        messages = clients.admin.find_messages(self.topic, bytes_to_str(key), begin=begin).messages
        since = takewhile(lambda message: not message.get_property(_FORGOTTEN), messages)
        return result_that_counts(since, lambda body: self.decode_result(body).get("status") == states.SUCCESS)

    def mget(self, keys: list[str | bytes]) -> list[bytes | None]:
        """Return the results of several keys."""
        return [self.get(key) for key in keys]

    def set(self, key: str | bytes, value: Any) -> None:
        """Store a value that belongs to no task, such as a saved group."""
        self._send(key, value, _NO_CALLER)

    def delete(self, key: str | bytes) -> None:
        """Forget a result: what was stored before is not found any more."""
        self._send(key, b"", _NO_CALLER, {_FORGOTTEN: "true"})

    def _send(self, key: str | bytes, value: Any, tag: str, properties: dict[str, str] | None = None) -> None:
        body = value.encode() if isinstance(value, str) else value
        self.clients.send(Message(self.topic, body, tag, [bytes_to_str(key)], properties))
