"""Celery's result backend on Reput.

A result is a message with the task's id as key, by which it is found; its tag is the program that has called the task,
which reads it when it comes. States come one after the other: what counts is SUCCESS if there is one, otherwise the
last. So a result is one send, and nothing is asked before. A result lives until `result_expires`, but no longer than
the broker keeps its log.
"""

from __future__ import annotations

import os
import time
from collections import deque
from functools import cached_property
from itertools import chain, takewhile
from typing import Any, Final

from celery import states
from celery._state import task_join_will_block
from celery.backends.asynchronous import AsyncBackendMixin, BaseResultConsumer
from celery.backends.base import BaseKeyValueStoreBackend
from kombu.utils.encoding import bytes_to_str

from reput_client.errors import ClientClosed
from reput_client.tasks.celery.connecting import client_options
from reput_client.tasks.celery.result_clients import Mailbox, SharedClients, shared_clients
from reput_client.tasks.celery.topics import tag_of
from reput_client.tasks.stored_results import result_that_counts
from reput_protocol.errors import ReputError
from reput_protocol.record.message import Message

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
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        **kwargs: Any,
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
        return result_that_counts(
            since, lambda body: self.decode_result(body).get("status") == states.SUCCESS
        )

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
