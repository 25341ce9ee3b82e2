"""The pops of waiting clients.

All clients that receive the same messages, by group, topic, filter and order, share the notifications of the brokers,
so that a waiting client costs a task and no request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress
from typing import Final, NamedTuple

from reput_client.consume.group.subscriptions import parse_topics
from reput_client.pop.fetcher import PopFetcher, Wait
from reput_client.pop.popped import PoppedMessage, Settling
from reput_client.transport.session import Session
from reput_protocol.errors import ReputError

_AFTER_LAST_MESSAGE: Final = 1
"""Where a group without offsets begins, as with RocketMQ's proxy: `init_mode` of pops."""
_IDLE_MAX: Final = 1_000
"""Pops that are kept although no client waits for their messages; each has some 4 KiB."""


class Wanted(NamedTuple):
    """What a client receives."""

    group: str
    topic: str
    tags: str
    sql: str | None
    is_orderly: bool


class Pops:
    """What the clients of one user receive by."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fetchers: dict[Wanted, PopFetcher] = {}
        self._waiting: dict[Wanted, int] = {}
        self._idle: OrderedDict[Wanted, None] = OrderedDict()  # in the order in which they became idle

    async def receive(
        self, wanted: Wanted, max_messages: int, invisible_s: float, wait_s: float, attempt_id: str | None = None
    ) -> list[PoppedMessage]:
        """Return up to `max_messages` messages, none after `wait_s`. A cancelled call gives back what it has popped.

        In order, a receive with the same `attempt_id` gets the messages of the one before again.

        Raises:
            FilterSyntaxError: the tags cannot be parsed.
            ReputError: as of `PopConsumer.receive`.
        """
        fetcher = self._fetcher(wanted)
        wait = Wait()
        until = self._session.runtime.now() + wait_s
        self._waiting[wanted] = self._waiting.get(wanted, 0) + 1
        self._idle.pop(wanted, None)
        popped = asyncio.ensure_future(
            fetcher.receive(PoppedMessage, max_messages, invisible_s, until, wait, attempt_id)
        )
        popped.add_done_callback(lambda _: self._has_ended(wanted))
        try:
            return await asyncio.shield(popped)
        except asyncio.CancelledError:
            # A pop that is under way cannot be taken back: its messages would be invisible with no client to have them.
            fetcher.end_waiting(wait)
            popped.add_done_callback(self._give_back_of)
            raise

    def _fetcher(self, wanted: Wanted) -> PopFetcher:
        fetcher = self._fetchers.get(wanted)
        if fetcher is None:
            group, topic, tags, sql, is_orderly = wanted
            fetcher = PopFetcher(
                self._session,
                parse_topics(group, topic, None, tags, sql, retries=False, version=0),
                Settling(self._session, group),
                start="earliest",
                wait_for_topic=True,
                deserializer=None,
                init_mode=_AFTER_LAST_MESSAGE,
                missing_level=logging.DEBUG,  # any client can name topics
            )
            fetcher.orderly = is_orderly
            self._fetchers[wanted] = fetcher
        return fetcher

    def _has_ended(self, wanted: Wanted) -> None:
        """Note the end of a wait, and forget the pops that have been idle for longest, if there are too many."""
        self._waiting[wanted] -= 1
        if self._waiting[wanted]:
            return
        del self._waiting[wanted]
        if wanted in self._fetchers:  # not closed meanwhile
            self._idle[wanted] = None
        while len(self._idle) > _IDLE_MAX:
            oldest, _ = self._idle.popitem(last=False)
            self._fetchers.pop(oldest).forget()

    def _give_back_of(self, popped: asyncio.Future[list[PoppedMessage]]) -> None:
        if not popped.cancelled() and popped.exception() is None and popped.result():
            asyncio.ensure_future(self.give_back(popped.result()))  # noqa: RUF006  # it holds no state

    async def give_back(self, messages: list[PoppedMessage]) -> None:
        """Make messages that no client has got visible again; never raises."""
        for message in messages:
            with suppress(ReputError):
                await message.nack(counts=False)

    def end_waiting(self) -> None:
        """End all waits; the clients receive no messages."""
        for fetcher in self._fetchers.values():
            fetcher.end_waiting()

    def close(self) -> None:
        """End all waits and forget everything."""
        self.end_waiting()
        for fetcher in self._fetchers.values():
            fetcher.forget()
        self._fetchers.clear()
        self._idle.clear()
