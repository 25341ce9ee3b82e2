"""Where Kombu's queues and exchanges are in a broker, and which messages of an exchange a queue gets.

- A queue is a topic, and a group of the same name that pops it.
- An exchange is a topic with one queue. What is sent to a direct exchange with its own name as routing key, as Celery
  and `SimpleQueue` do, is in the topic of the queue of that name instead.
- Each queue that is bound to an exchange reads the exchange's topic too: a shared queue as its group, from the binding
  on; a transient one (`exclusive`, or `auto_delete` with `expires`, without priorities) by itself. So a message is
  stored once, however many queues it goes to, and a program that was killed leaves nothing behind.
- What is sent straight to a transient queue, such as a reply, is in one topic for all of them, with the queue's name as
  tag.

A message of Kombu is the body of one of Reput's: JSON with the headers, and the body as text or in base64.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from kombu.utils.json import dumps, loads

from reput_client.tasks.shared import checked, quoted
from reput_protocol.record.message import Message

_EXCHANGE: Final = "exchange%"
TRANSIENT: Final = f"{_EXCHANGE}%"
"""The topic of what is sent straight to transient queues."""
_NO_KEY: Final = "%"
"""The tag for an empty routing key; no other key is quoted so."""


@lru_cache(maxsize=1024)
def queue_topic(queue: str) -> str:
    """Return the topic of a queue, and its group: the name, with %XX for what names of topics cannot have.

    Raises:
        ValueError: it would be too long.
    """
    return checked(quoted(queue), f"queue {queue!r}")


def exchange_topic(exchange: str) -> str:
    """Return the topic of an exchange; raises like `queue_topic`."""
    return checked(_EXCHANGE + quoted(exchange), f"exchange {exchange!r}")


def is_of_exchange(topic: str) -> bool:
    """Whether a topic is an exchange's, with one queue, and not a queue's, with a queue for each priority."""
    return topic.startswith(_EXCHANGE)


@lru_cache(maxsize=1024)
def topic_of(exchange: str, kind: str, routing_key: str) -> str:
    """Return the topic of what is sent to an exchange with a routing key; raises like `queue_topic`."""
    if kind == "direct" and exchange == routing_key:
        return queue_topic(exchange)
    return exchange_topic(exchange)


@lru_cache(maxsize=1024)
def tag_of(name: str) -> str:
    """Return the tag for a routing key, or for the name of a transient queue."""
    return quoted(name) or _NO_KEY


class Binding(NamedTuple):
    """A queue gets the messages of an exchange that have a routing key, or one that fits."""

    exchange: str
    kind: str
    routing_key: str

    @property
    def topic(self) -> str:
        """The topic of the messages that the binding is about."""
        return topic_of(self.exchange, self.kind, self.routing_key)

    def fits(self, routing_key: str) -> bool:
        """Whether the queue gets a message of the exchange."""
        match self.kind:
            case "direct":
                return routing_key == self.routing_key
            case "topic":
                return _pattern(self.routing_key).fullmatch(f".{routing_key}") is not None
            case _:
                return True


@lru_cache(maxsize=1024)
def _pattern(routing_key: str) -> re.Pattern[str]:
    """Return the words of a binding of a topic exchange as a pattern: `*` is one word, `#` any number of them."""
    parts = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    return re.compile("".join(parts.get(word) or r"\." + re.escape(word) for word in routing_key.split(".")))


def topics_of(bindings: Iterable[Binding]) -> dict[str, str]:
    """Return the topics of bindings of a queue, with the tags that are wanted."""
    tags: dict[str, set[str]] = {}
    for each in bindings:
        is_by_tag = each.kind == "direct" and each.exchange != each.routing_key
        tags.setdefault(each.topic, set()).add(tag_of(each.routing_key) if is_by_tag else "*")
    return {topic: "*" if "*" in wanted else "||".join(sorted(wanted)) for topic, wanted in tags.items()}


Payload: TypeAlias = dict[str, Any]
"""What Kombu's virtual transports exchange: `body`, `content-type`, `content-encoding`, `headers`, `properties`."""

EARLY_S: Final = 1.0
"""A worker keeps a task that is received so long before its time, or less; earlier ones wait in the broker again."""


def message_of(topic: str, tag: str, payload: Payload, wait_max_s: float, *, has_priority: bool) -> Message:
    """Return the message for a payload, which waits in the broker until its task's `eta`, at most `wait_max_s` seconds.

    The task's id is a key, by which the message can be found.
    """
    properties = payload["properties"]
    task_id = properties.get("correlation_id")
    due = eta_of(payload)
    more: dict[str, Any] = {"priority": priority_of(payload)} if has_priority else {}
    if due is not None and due > (now := datetime.now(UTC)):
        more = {"delay_s": min((due - now).total_seconds(), wait_max_s)}
    if str(properties.get("expiration") or "").isdecimal():
        more["ttl_s"] = max(int(properties["expiration"]), 1) / 1000
    keys = (task_id,) if isinstance(task_id, str) and task_id and task_id.isprintable() and " " not in task_id else ()
    return Message(topic, dumps(payload).encode(), tag, keys, **more)


def payload_of(body: bytes) -> Payload:
    """Return the payload of a body.

    Raises:
        ValueError: another program has sent it.
    """
    payload = loads(body.decode())
    if not isinstance(payload, dict):
        raise ValueError("it is no object")
    if not isinstance(payload.get("headers") or {}, dict):
        raise ValueError("its headers are no object")
    properties = payload.get("properties")
    if not isinstance(properties, dict) or not isinstance(properties.setdefault("delivery_info", {}), dict):
        raise ValueError("it has no properties, or they do not say where it was sent to")
    return payload


def eta_of(payload: Payload) -> datetime | None:
    """Return when the task of a payload is due, or None if at once."""
    eta = (payload.get("headers") or {}).get("eta")
    if not eta:
        return None
    try:
        due: datetime = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
        return due.replace(tzinfo=UTC) if due.tzinfo is None else due
    except (ValueError, AttributeError):
        return None  # not Celery's; the worker judges it


def priority_of(payload: Payload) -> int:
    """Return the priority of a payload: 0 to 9, and 9 is the highest, as in AMQP."""
    try:
        return min(max(int(payload["properties"].get("priority") or 0), 0), 9)
    except (TypeError, ValueError):
        return 0


def is_early(payload: Payload) -> bool:
    """Whether a task was received long before it is due, because a message cannot wait for so long at a time."""
    due = eta_of(payload)
    return due is not None and (due - datetime.now(UTC)).total_seconds() > EARLY_S


def is_expired(payload: Payload, stored_ms: float, now_ms: float) -> bool:
    """Whether the `expiration` of a payload, in ms since it was stored, has passed."""
    try:
        return now_ms >= stored_ms + int(payload["properties"]["expiration"])
    except (KeyError, TypeError, ValueError):
        return False
