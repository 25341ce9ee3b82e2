"""The state that `Consumer` and `PopConsumer` have in common: group, topics, connection, end."""

from __future__ import annotations

from abc import ABC, abstractmethod

from reput_client.consume.group.subscriptions import Subscriptions
from reput_client.transport.client import Client


class Subscriber(Client, ABC):
    """A client that gets the messages of some topics for a group."""

    group: str
    _subscriptions: Subscriptions

    @property
    def topics(self) -> tuple[str, ...]:
        """The consumed topics; with a pattern, those found so far."""
        return self._subscriptions.topics

    @property
    def topic(self) -> str:
        """The topic, or the first of several; "" while a pattern has found none."""
        return next(iter(self.topics), "")

    @property
    def connected(self) -> bool:
        """Whether any connection is open."""
        return self._session.connected

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed."""
        return self._session.closed

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether no more messages are delivered, because the consumer was stopped or closed."""
