"""Properties that a broker acts on, and what happens if a client sets them.

`RULES` is the one list of them. A property without a rule is the application's and is stored as it was sent. Who may
set a property depends on the form in which a message reaches the broker (`Form`). A property that names something,
such as a topic, never has an effect beyond the topic that its sender may write to.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from reput_protocol import properties as names
from reput_protocol.buffers import Buffer
from reput_protocol.errors import InvalidMessage
from reput_protocol.properties import CRC_PROPERTY_BYTES, check_text, decode_properties, ends_with_crc_property


class Form(StrEnum):
    """How a message reaches the broker."""

    ALONE = "alone"
    """Requests 10 and 310; also the half message that 37 ends."""
    RETURNED = "returned"
    """Requests 10 and 310 to a retry topic: a consumer sends them if the broker refuses 36."""
    BATCH = "batch"
    """Request 320, and 10 and 310 with the flag for a batch."""
    BLOCK = "block"
    """PutMessage (700001) and staged records (700040): the broker changes no length."""
    REPLY = "reply"
    """Requests 324 and 325: what is pushed to the requester, and the stored copy."""


class Treatment(StrEnum):
    """What happens to a property that a client sets."""

    KEPT = "kept"
    """It is stored as it was sent, and has no effect on anything but its own message."""
    CHECKED = "checked"
    """It has the effect that the rule describes, and no other."""
    DROPPED = "dropped"
    """The broker removes it before it does anything else."""
    REFUSED = "refused"
    """The request is refused, and stores nothing."""
    REFUSED_IN_RETRIES = "rejected in retries"
    """As REFUSED if the topic is a retry or dead-letter topic; elsewhere as KEPT."""


class PropertyRule(NamedTuple):
    """One property.

    Attributes:
        name: the name; the beginning of all names that the rule is about if `is_prefix`.
        effect: what the broker does by it.
        alone, returned, batch, block, reply: the treatment in each `Form`.
        is_prefix: whether `name` is only a beginning. A rule of a whole name has precedence.
        refers_to: what the value names: "topic", "group", "client", "message"; empty if nothing.
    """

    name: str
    effect: str
    alone: Treatment
    returned: Treatment
    batch: Treatment
    block: Treatment
    reply: Treatment
    is_prefix: bool = False
    refers_to: str = ""

    def treatment(self, form: Form) -> Treatment:
        """Return the treatment of the property in a message of this form."""
        found: Treatment = getattr(self, form.value)
        return found


_KEPT, _CHECKED, _DROPPED, _REFUSED, _IN_RETRIES = Treatment


def _brokers(
    name: str,
    effect: str,
    *,
    block: Treatment = _REFUSED,
    reply: Treatment = _REFUSED,
    is_prefix: bool = False,
    refers_to: str = "",
) -> PropertyRule:
    """Return the rule of a property that only the broker sets."""
    return PropertyRule(name, effect, _DROPPED, _DROPPED, _DROPPED, block, reply, is_prefix, refers_to)


def _senders(name: str, effect: str, *, alone: Treatment = _CHECKED, refers_to: str = "") -> PropertyRule:
    """Return the rule of a property that producers set, in any form."""
    return PropertyRule(name, effect, alone, alone, _CHECKED, _CHECKED, _CHECKED, refers_to=refers_to)


def _sent_alone(name: str, effect: str, *, refers_to: str = "") -> PropertyRule:
    """Return the rule of a property with an effect on messages that are sent alone; others may not have it."""
    return PropertyRule(name, effect, _CHECKED, _CHECKED, _REFUSED, _REFUSED, _REFUSED, refers_to=refers_to)


def _returned(name: str, effect: str, returned: Treatment, *, refers_to: str = "") -> PropertyRule:
    """Return the rule of a property that a consumer copies when it sends a message to its retry topic itself."""
    return PropertyRule(name, effect, _DROPPED, returned, _DROPPED, _IN_RETRIES, _DROPPED, refers_to=refers_to)


RULES: Final = (
    _brokers("REPUT_", "Reput's own marks", is_prefix=True),
    _brokers("INNER_", "RocketMQ's batches in one record, and queues of LMQ", is_prefix=True),
    _brokers("REAL_", "destination of a delayed or half message", is_prefix=True),
    _brokers(names.REAL_TOPIC, "destination of a delayed or half message", refers_to="topic"),
    # Delays
    _sent_alone(names.DELAY, "delays its message by a level; 0 is no delay"),
    _sent_alone(names.TIMER_DELIVER_MS, "delays its message"),
    _sent_alone(names.TIMER_DELAY_SEC, "delays its message"),
    _sent_alone(names.TIMER_DELAY_MS, "delays its message"),
    _sent_alone(names.TIMER_OUT_MS, "a message that was delivered by the timer before is not delayed again"),
    _sent_alone(
        names.TIMER_DEL_UNIQKEY,
        "cancels a delayed message with this unique id and the same destination and second, and no other",
        refers_to="message",
    ),
    _brokers(names.TIMER_ENQUEUE_MS, "times of the timer"),
    _brokers(names.TIMER_DEQUEUE_MS, "times of the timer"),
    _brokers(names.TIMER_ROLL_TIMES, "how often the timer has put a message back"),
    PropertyRule(
        "TIMER_", "RocketMQ's timer", _KEPT, _KEPT, _KEPT, _REFUSED, _REFUSED, is_prefix=True
    ),
    # Expiry
    _senders(names.EXPIRES_AFTER, "not delivered after so many ms, in a topic that has had one that was sent alone"),
    _senders(names.EXPIRES_AT, "not delivered from that moment on, likewise"),
    # Transactions
    _sent_alone(names.TRAN_MSG, "`true` begins a transaction"),
    _senders(names.PRODUCER_GROUP, "the producers that decide a half message", refers_to="group"),
    _senders(names.CHECK_IMMUNITY_TIME, "how long a half message is not checked"),
    _brokers(names.TRANSACTION_CHECK_TIMES, "how often a half message was checked", block=_KEPT, reply=_DROPPED),
    _brokers(
        names.TRANSACTION_PREPARED_QUEUE_OFFSET, "the first copy of a half message", block=_KEPT, reply=_DROPPED
    ),
    # Popped messages
    _brokers(names.POP_CK, "the handle by which a popped message is acknowledged", refers_to="message"),
    _brokers(
        names.POP_ORIGIN, "the pop of which this is the redelivery", block=_IN_RETRIES, reply=_DROPPED,
        refers_to="message",
    ),
    _brokers(names.FIRST_POP_TIME, "the broker has redelivered it", block=_IN_RETRIES, reply=_DROPPED),
    _brokers(names.POP_PASSED, "how a pop has moved its group"),
    # Retries and dead letters
    _returned(
        names.RETRY_TOPIC,
        "the topic to which a dead letter is replayed, if it is proven that the message is from there",
        _CHECKED,
        refers_to="topic",
    ),
    _returned(names.ORIGIN_MESSAGE_ID, "proves RETRY_TOPIC", _CHECKED, refers_to="message"),
    _returned(
        names.SEND_BACK_ID, "recognises a repeated request, if it is the same message", _CHECKED,
        refers_to="message",
    ),
    _returned(names.RETRY_REASON, "shown with retries and dead letters", _KEPT),
    _brokers(names.DLQ_REASON, "shown with dead letters", block=_IN_RETRIES, reply=_DROPPED),
    PropertyRule(
        names.DLQ_ORIGIN_TOPIC, "as RETRY_TOPIC, in dead letters of RocketMQ's clients", _DROPPED, _DROPPED,
        _DROPPED, _IN_RETRIES, _DROPPED, refers_to="topic",
    ),
    # Requests and replies
    _senders(names.REPLY_TO_CLIENT, "the client to which a reply is pushed, not another user's", refers_to="client"),
    _senders(names.MSG_TYPE, "`reply` marks a reply"),
    # All messages
    _senders(names.UNIQ_KEY, "finds and deduplicates messages of the same topic"),
    _senders(names.KEYS, "finds messages of the same topic"),
    _senders(names.TAGS, "filters"),
    _senders(names.WAIT, "`false` does not wait for the disk"),
    _senders(names.SHARDING_KEY, "chooses the queue of a replayed dead letter"),
    _senders(names.PRIORITY, "chooses the queue if sent alone; removed from delayed, ordered and half messages"),
    _senders(names.MSG_REGION, "replaced if sent alone", alone=_DROPPED),
    _senders(names.TRACE_ON, "replaced if sent alone", alone=_DROPPED),
    _senders(names.CLUSTER, "replaced if sent alone; the cluster of the reply topic", alone=_DROPPED),
    PropertyRule(
        names.CRC32, "checksum of the record, which the broker computes", _DROPPED, _DROPPED, _DROPPED, _CHECKED,
        _DROPPED,
    ),
)  # fmt: skip
"""One row a property. Where none fits a name, the property is the application's."""

_BY_NAME: Final = {rule.name: rule for rule in RULES if not rule.is_prefix}
_OF_PREFIXES: Final = tuple(rule for rule in RULES if rule.is_prefix)
_LIMITED: Final = {
    form: (
        frozenset(rule.name for rule in _BY_NAME.values() if rule.treatment(form) not in (_KEPT, _CHECKED)),
        tuple(rule.name for rule in _OF_PREFIXES if rule.treatment(form) not in (_KEPT, _CHECKED)),
    )
    for form in Form
}
_WITHOUT_EFFECT: Final = {names.DELAY: ("0",), names.TRAN_MSG: ("false",)}
"""Values that clients may send with a batch: its messages are neither delayed nor half messages."""
_OF_THE_TIMER: Final = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS, names.TIMER_OUT_MS)
"""Properties that say when a message is delivered, besides its level."""
_OWN_ARGUMENT: Final = {
    names.TAGS: "tag=",
    names.KEYS: "keys=",
    names.UNIQ_KEY: "unique_id=",
    names.DELAY: "delay_level=",
    names.TIMER_DELAY_SEC: "delay_s=",
    names.TIMER_DELAY_MS: "delay_s=",
    names.TIMER_DELIVER_MS: "deliver_at=",
    names.EXPIRES_AFTER: "ttl_s=",
    names.EXPIRES_AT: "expires_at=",
}


def rule_of(name: str) -> PropertyRule | None:
    """Return the rule for a property; None if it is the application's."""
    rule = _BY_NAME.get(name)
    return rule or next((rule for rule in _OF_PREFIXES if name.startswith(rule.name)), None)


def limited_in_batch() -> tuple[bytes, ...]:
    """Return how the names begin of all properties that are not stored as they are sent in a batch."""
    whole, prefixes = _LIMITED[Form.BATCH]
    return (*map(str.encode, prefixes), *(name.encode() + b"\x01" for name in sorted(whole)))


def admit(properties: dict[str, str], form: Form) -> str | None:
    """Remove from `properties` what a client may not set in a message of this form.

    Returns:
        The first property for which the message is refused; None if there is none.
    """
    whole, prefixes = _LIMITED[form]
    for name in [name for name in properties if name in whole or name.startswith(prefixes)]:
        rule = rule_of(name)
        assert rule is not None
        if rule.treatment(form) is _DROPPED:
            del properties[name]
        elif form is not Form.BATCH or properties[name].lower() not in _WITHOUT_EFFECT.get(name, ()):
            return name
    return None


def is_reserved(name: str, *, in_retries: bool = False) -> bool:
    """Return whether a put block may not have a property of this name.

    Args:
        in_retries: whether its topic is a retry or dead-letter topic.
    """
    rule = rule_of(name)
    return rule is not None and (rule.block is _REFUSED or (in_retries and rule.block is _IN_RETRIES))


def reserved_property(text: Buffer) -> str | None:
    """Return the first name in `text` that a put block may not have, or None."""
    return next((name for name in decode_properties(text) if is_reserved(name)), None)


def without_effect(properties: Mapping[str, str], now_ms: int) -> set[str]:
    """Return the reserved properties of a stored message that a copy can do without.

    They are the marks of the broker that has stored it, and what says that it is neither delayed nor half: if the copy
    were sent alone, its broker would remove them, or they would have no effect.

    Args:
        properties: of the message.
        now_ms: when the copy is made.
    """
    found = set()
    for name, value in properties.items():
        rule = rule_of(name)
        if rule is None or rule.block is not _REFUSED:
            continue
        # The timer has delivered a message with TIMER_OUT_MS, which is forwarded without a delay.
        is_over = name in _OF_THE_TIMER and (names.TIMER_OUT_MS in properties or _is_over(name, value, now_ms))
        if rule.alone is _DROPPED or is_over or value.lower() in _WITHOUT_EFFECT.get(name, ()):
            found.add(name)
    return found


def _is_over(name: str, value: str, now_ms: int) -> bool:
    """Return whether a delay has no effect any more."""
    try:
        return int(value) <= (now_ms if name == names.TIMER_DELIVER_MS else 0)
    except ValueError:
        return False


def properties_fault(text: bytes, *, in_retries: bool = False) -> str | None:
    """Return why a put block may not have the properties `text`, or None.

    They must be canonical, UTF-8 and without reserved names. `__CRC32#` is allowed where RocketMQ writes it, as the
    last unit with ten digits, which the broker fills in.

    Args:
        in_retries: as of `is_reserved`.
    """
    if ends_with_crc_property(text) and text[-11:-1].isdigit():
        text = text[:-CRC_PROPERTY_BYTES]
    if not text:
        return None
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        return f"properties are not UTF-8 at their byte {error.start}"
    if decoded[-1] != "\x02":
        return "properties do not end with 0x02"
    for unit in decoded[:-1].split("\x02"):
        name, separator, value = unit.partition("\x01")
        if not separator:
            return f"property {_shown(unit)} has no 0x01 between name and value"
        if not name:
            return f"a property with the value {_shown(value)} has an empty name"
        if not value:
            return f"property {_shown(name)} has an empty value"
        if "\x01" in value:
            return f"the value of property {_shown(name)} holds 0x01"
        if name == names.CRC32:
            return f"property {names.CRC32!r} must be the last and have ten digits"
        if is_reserved(name, in_retries=in_retries):
            return f"property {_shown(name)} is reserved for the broker"
    return None


def check_property(name: str, value: str) -> None:
    """Check one property that a caller sets.

    Raises:
        InvalidMessage: it is not text, is empty, contains 0x01 or 0x02, or is set by the broker or by an argument of
            its own (`tag`, `keys`, `unique_id`, `delay_level`, `delay_s`, `deliver_at`).
    """
    if not isinstance(name, str) or not isinstance(value, str):
        raise InvalidMessage(
            f"property {name!r} and its value must be str, not {type(name).__name__} and {type(value).__name__}; "
            "convert them to text"
        )
    if name in _OWN_ARGUMENT:
        raise InvalidMessage(f"property {name!r} has its own argument; pass {_OWN_ARGUMENT[name]}")
    if name == names.CRC32 or is_reserved(name):
        raise InvalidMessage(f"property {name!r} is reserved for the broker; choose another name")
    check_text("property name", name)
    check_text(f"value of property {name!r}", value)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "...")
