"""What a group wants: its topics and their filters, and how a heartbeat says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reput_client.consume.wanted import Wanted
from reput_protocol.bodies_heartbeat import SubscriptionData
from reput_protocol.filters import ALL
from reput_protocol.names import check_topic, retry_topic


class Subscriptions:
    """The topics of one member, each with its filter; `version` tells a newer subscription from an older one."""

    def __init__(self, filters: Mapping[str, Wanted], version: int, retry: str | None) -> None:
        """Subscribe to the topics of `filters` and, whatever their tags, to what comes back through `retry`."""
        self.topics = tuple(filters)
        self.retry = retry
        self.version = version
        self._filters = {**filters} if retry is None else {**filters, retry: Wanted.of(ALL, None)}

    @property
    def all_topics(self) -> tuple[str, ...]:
        """The topics that were asked for, and the retry topic."""
        return tuple(self._filters)

    def wanted_of(self, topic: str) -> Wanted:
        """Return what is wanted of `topic`."""
        return self._filters[topic]

    def data(self) -> list[SubscriptionData]:
        """Return the subscriptions as a heartbeat holds them."""
        return [
            SubscriptionData.of(topic, wanted.expression, self.version, wanted.expression_type.value)
            for topic, wanted in self._filters.items()
        ]


def parse_topics(
    group: str,
    topic: str | None,
    topics: Iterable[str] | Mapping[str, str] | None,
    tags: str,
    sql: str | None,
    *,
    retries: bool,
    version: int,
) -> Subscriptions:
    """Return what `topic=`, `topics=`, `tags=` and `sql=` of a consumer mean; with `retries` the retry topic besides.

    Raises:
        ValueError: no topic, or two arguments that exclude each other.
        InvalidName, FilterSyntaxError: an argument breaks the rules.
    """
    if (topic is None) == (topics is None):
        raise ValueError("give either topic= or topics=")
    if topic is not None:
        wanted: Mapping[str, str] = {topic: tags}
    elif isinstance(topics, Mapping):
        if sql is not None:
            raise ValueError("topics= has the tags of each topic; sql= goes with names only")
        wanted = topics
    else:
        assert topics is not None, "one of the two is given"
        wanted = dict.fromkeys([topics] if isinstance(topics, str) else topics, tags)
    if not wanted:
        raise ValueError("topics= names no topic")
    filters = {check_topic(name): Wanted.of(expression, sql) for name, expression in wanted.items()}
    return Subscriptions(filters, version, retry_topic(group) if retries else None)
