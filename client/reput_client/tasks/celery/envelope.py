"""Kombu's messages as bodies of Reput's: JSON with the headers, and the body as text or in base64."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from kombu.utils.json import dumps, loads

from reput_protocol.record.message import Message

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
    keys = (
        (task_id,)
        if isinstance(task_id, str) and task_id and task_id.isprintable() and " " not in task_id
        else ()
    )
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
