"""What a member wants, in a form in which two members can be compared.

Members of one group share its messages out, so all must want the same: of a message that goes to a member that does not
want it, nobody else hears. What counts is the topics, the filter of each and the message model. Neither the version of
a subscription nor the order of its tags does, nor the group's retry topic, which some clients subscribe to only after a
while.
"""

from __future__ import annotations

from typing import NamedTuple

from reput_protocol.bodies_heartbeat import ConsumerData, SubscriptionData
from reput_protocol.errors import FilterSyntaxError
from reput_protocol.filters import TagFilter
from reput_protocol.group_terms import ExpressionType, MessageModel
from reput_protocol.names import RETRY_PREFIX


class Wanted(NamedTuple):
    """What a member wants: its message model, and (topic, expression type, expression) of each subscription."""

    message_model: MessageModel
    filters: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, data: ConsumerData) -> Wanted:
        """Return what a heartbeat asks for."""
        filters = {
            subscription.topic: (subscription.topic, *_filter_of(subscription))
            for subscription in data.subscriptions
            if not subscription.topic.startswith(RETRY_PREFIX)
        }
        return cls(data.message_model, tuple(sorted(filters.values())))

    def difference(self, other: Wanted) -> tuple[str, str]:
        """Return, in words for people, the first thing in which two differ: as it is here, and there."""
        if self.message_model is not other.message_model:
            return self.message_model.value, other.message_model.value
        here = {topic: expression for topic, _, expression in self.filters}
        there = {topic: expression for topic, _, expression in other.filters}
        for topic in sorted({*here, *there}):
            if here.get(topic) != there.get(topic):
                return _words(topic, here), _words(topic, there)
        topic, kind, _ = next(entry for entry in self.filters if entry not in other.filters)
        other_kind = next(name for name_topic, name, _ in other.filters if name_topic == topic)
        return f"{topic} by {kind}", f"{topic} by {other_kind}"


def _filter_of(subscription: SubscriptionData) -> tuple[str, str]:
    kind, expression = subscription.expression_type, subscription.sub_string.strip()
    if kind == ExpressionType.TAG:
        try:
            tags = TagFilter.parse(expression)
        except FilterSyntaxError:
            return kind, expression
        expression = tags.expression if tags.matches_all else " || ".join(sorted(tags.tags))
    return kind, expression


def _words(topic: str, filters: dict[str, str]) -> str:
    expression = filters.get(topic)
    return f"{topic} not at all" if expression is None else f"{topic} with {expression!r}"
