"""The state that the synchronous `Consumer` and `PopConsumer` have in common."""

from __future__ import annotations

from typing import TypeVar

from reput_client.blocking.client import BlockingClient
from reput_client.consume.group.subscriber import Subscriber

SubscriberT = TypeVar("SubscriberT", bound=Subscriber)


class BlockingSubscriber(BlockingClient[SubscriberT]):
    """A client that gets the messages of some topics for a group."""

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._client.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The consumed topics; with a pattern, those found so far."""
        return self._client.topics

    @property
    def topic(self) -> str:
        """The topic, or the first of several; "" while a pattern has found none."""
        return self._client.topic

    @property
    def connected(self) -> bool:
        """Whether any connection is open."""
        return self._client.connected

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed."""
        return self._client.closed

    @property
    def stopped(self) -> bool:
        """Whether no more messages are delivered, because the consumer was stopped or closed."""
        return self._client.stopped
