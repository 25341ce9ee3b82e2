"""Topics by pattern: a consumer subscribes to those that match, also to ones that are created later."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from typing_extensions import override

from reput_client.consume.group.subscriptions import Subscriptions
from reput_client.transport.background import Chore
from reput_client.transport.backoff import Backoff
from reput_client.transport.session import SILENCE_S, Session
from reput_protocol.errors import ReputError
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

INTERVAL_S: Final = 20.0
_RETRY_S: Final = 1.0

log = logging.getLogger("reput_client")


class TopicSearch(Chore):
    """Asks for the cluster's topics every 20 s; of a member also when the group changes. A background chore.

    Without a pattern it is never due. A background search tries the client's own address once and waits a second for
    it at most, because pulls and pops wait for the search; after failures it pauses longer, up to the interval.

    Args:
        on_found: called with each topic that matches for the first time.
    """

    def __init__(
        self, session: Session, subscriptions: Subscriptions, on_found: Callable[[str], None]
    ) -> None:
        self._session = session
        self._subscriptions = subscriptions
        self._on_found = on_found
        self._due_at = math.inf if subscriptions.pattern is None else 0.0
        self._pauses = Backoff(_RETRY_S, INTERVAL_S)

    @override
    def next_due(self) -> float:
        return self._due_at

    def soon(self) -> None:
        """Look now: another member may have found a topic."""
        if self._subscriptions.pattern is not None:
            self._due_at = self._session.runtime.now()

    @override
    async def do(self) -> None:
        session = self._session
        deadline = session.runtime.now() + SILENCE_S
        try:
            await session.connection_to(session.home).open(deadline, patient=False)
            await self.look(deadline)
        except ReputError as error:
            session.check_open()
            log.warning("the list of topics is not available, requesting it again: %s", error)
            self._due_at = session.runtime.now() + self._pauses.next_delay_s()
        else:
            self._pauses.reset()

    async def look(self, deadline: float) -> None:
        """Subscribe to the topics that match; raises `ReputError` if the list cannot be had before `deadline`."""
        pattern = self._subscriptions.pattern
        if pattern is None:
            return
        self._due_at = self._session.runtime.now() + INTERVAL_S
        topics = await self._session.topic_names(deadline)
        own_names = (await self._session.cluster(deadline)).own_names
        for topic in topics:
            is_ours = topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or is_system_topic(topic, own_names)
            if not is_ours and pattern.fullmatch(topic) and self._subscriptions.add(topic):
                log.info("topic %s matches %s", topic, pattern.pattern)
                self._on_found(topic)
