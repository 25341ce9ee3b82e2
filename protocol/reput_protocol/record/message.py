"""What a producer sends and where to: `Message` and `MessageQueue`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Final, Unpack

from msgspec import UNSET, Meta, Struct

from reput_protocol.buffers import Buffer
from reput_protocol.errors import InvalidMessage
from reput_protocol.names import BrokerName, TopicName, check_send_topic
from reput_protocol.properties import SENT_PROPERTIES_BYTES_MAX, check_key, check_properties_size, check_tag
from reput_protocol.property_rules import check_property
from reput_protocol.record.delays import Delay, DelayOptions, delay_of, expiry_of


class _NotSerialized(bytes):
    """The class of `NOT_SERIALIZED`, of which there is one in each process, in copies and pickles too."""

    def __reduce__(self) -> str:
        return "NOT_SERIALIZED"


NOT_SERIALIZED: Final = _NotSerialized()
"""The body, compared by identity, of a message with a value that no producer has serialized yet."""

_NO_PROPERTIES: Final[Mapping[str, str]] = {}
_I32_MAX: Final = 0x7FFF_FFFF


class MessageQueue(Struct, frozen=True, order=True, gc=False, rename="camel"):
    """One queue of a topic on one broker."""

    topic: TopicName
    broker_name: BrokerName
    queue_id: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

    def __iter__(self) -> Iterator[Any]:
        """Yield topic, broker name and queue id, for unpacking."""
        return iter((self.topic, self.broker_name, self.queue_id))


@dataclass(slots=True, init=False)
class Message:
    """A message to be sent.

    Consumers filter by `tag`; the message can be found by `keys`; `properties` and the 32 bits of `flag` are the
    application's. `unique_id` identifies it in RocketMQ's tools; a producer generates one if it is None. `delay` is the
    property for a delay or a priority, or for when it expires, or None; a message that has one is sent alone (310), and
    never in a block. The constructor validates everything, so do not change a message afterwards.

    Instead of a body it may have a `value`, for which a producer with a `serializer` sends a body.
    """

    topic: str
    body: Buffer
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    flag: int
    unique_id: str | None
    delay: Delay | None
    value: Any

    def __init__(
        self,
        topic: str,
        body: Buffer | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        unique_id: str | None = None,
        value: Any = UNSET,
        **delay: Unpack[DelayOptions],
    ) -> None:
        """Validate and keep the parts; `body` is not copied.

        Args:
            value: instead of `body`, what the producer's `serializer` takes.
            delay: at most one of these: `delay_level`, 1 to 18, RocketMQ's fixed delays: 1 5 10 30 s, 1 to 10 20 30
                min, 1 2 h; `delay_s`, seconds from when the broker stores the message, 0 for no delay; `deliver_at`,
                the moment, in local time without a time zone, a past one for no delay; or `priority`, 0 or more.
                Besides `ttl_s`, seconds after which no consumer gets it any more, from when the broker stores it in its
                queue, or `expires_at`, the moment; the sooner one counts.

        Raises:
            InvalidName: the topic's name is not valid, or clients may not send to it.
            InvalidMessage: another part cannot be sent; the text says which, and the remedy.
        """
        check_send_topic(topic)
        if type(body) is not bytes:
            body = checked_body(body) if value is UNSET or body is not None else NOT_SERIALIZED
        # `isprintable` quickly rules out separators, which are control characters.
        if tag is not None and (type(tag) is not str or not tag or not tag.isprintable() or "||" in tag or " " in tag):
            check_tag(tag)
        if properties:
            for name, text in properties.items():
                check_property(name, text)
        if flag and not (type(flag) is int and -_I32_MAX - 1 <= flag <= _I32_MAX):
            raise InvalidMessage(f"flag {flag!r} must be an int of 32 bits")
        if unique_id is not None:
            check_key(unique_id, "unique_id")
        if value is not UNSET and body is not NOT_SERIALIZED:
            raise InvalidMessage("body= and value= are both given; a message has one of them")
        self.topic = topic
        self.body = body
        self.value = value
        self.tag = tag
        self.keys = _checked_keys(keys) if keys else ()
        self.properties = properties or _NO_PROPERTIES
        self.flag = flag
        self.unique_id = unique_id
        self.delay = None
        if delay:
            self.delay = delay_of(delay)
            for name, text in expiry_of(delay).items():
                if self.delay is None:
                    self.delay = Delay(name, text)
                else:
                    self.properties = {**self.properties, name: text}

    @property
    def is_delayed(self) -> bool:
        """Whether it has a delay."""
        return self.delay is not None and not self.delay.keeps_order


def encode_properties_text(message: Message, unique_id: str | None) -> bytes:
    """Return the canonical properties of `message`, its unique id first, its delay or priority last.

    `unique_id` is used if the message has none; without either, none is written. The broker refuses a PutMessage block
    with a message that has a delay; request 310 takes it.

    Raises:
        InvalidMessage: longer than `SENT_PROPERTIES_BYTES_MAX`, or text that UTF-8 cannot encode (a lone surrogate).
    """
    unique_id = message.unique_id or unique_id
    tag = message.tag
    if unique_id and tag is not None:
        text = f"UNIQ_KEY\x01{unique_id}\x02TAGS\x01{tag}\x02"  # almost every message
    else:
        text = f"UNIQ_KEY\x01{unique_id}\x02" if unique_id else ""
        if tag is not None:
            text += f"TAGS\x01{tag}\x02"
    if message.keys:
        text += f"KEYS\x01{' '.join(message.keys)}\x02"
    if message.properties:
        text += "".join([f"{name}\x01{value}\x02" for name, value in message.properties.items()])
    if message.delay is not None:
        text += f"{message.delay.name}\x01{message.delay.value}\x02"
    # ASCII can always be encoded; `_encoded` explains failures.
    encoded = text.encode() if text.isascii() else _encoded(text)
    if len(encoded) > SENT_PROPERTIES_BYTES_MAX:
        check_properties_size(len(encoded))
    return encoded


def encode_keys_texts(keys: Sequence[Sequence[str]]) -> list[bytes]:
    """Return each message's encoded keys, empty without keys.

    Raises:
        InvalidMessage: for the first message with invalid keys.
    """
    if set(map(type, keys)) <= {list, tuple}:
        with suppress(TypeError):  # a key is not text
            joined = list(map(" ".join, keys))
            # All keys are checked together, as in `_checked_keys`.
            whole = "".join(joined)
            blanks = sum(map(len, keys)) - sum(map(bool, keys))
            if whole.isprintable() and whole.count(" ") == blanks and all(chain.from_iterable(keys)):
                return [f"KEYS\x01{each}\x02".encode() if each else b"" for each in joined]
    return [_encoded(f"KEYS\x01{' '.join(_checked_keys(each))}\x02") if each else b"" for each in keys]


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"tag, keys or properties hold {text[error.start]!r}, half of a character, which UTF-8 cannot encode"
        ) from None


def checked_body(body: object) -> Buffer:
    """Return a body as an object whose length is its size in bytes.

    Raises:
        InvalidMessage: it cannot be sent.
    """
    if type(body) is bytes:
        return body
    if isinstance(body, str):
        raise InvalidMessage("body is a str; pass bytes, for instance body.encode()")
    if isinstance(body, memoryview):
        if not body.contiguous:
            raise InvalidMessage("body is a memoryview with gaps; pass bytes(body)")
        return body.cast("B")
    if isinstance(body, bytes | bytearray):
        return body
    if body is None:
        raise InvalidMessage("a message has a body=, or a value= for the producer's serializer")
    raise InvalidMessage(
        f"body must be bytes, bytearray or memoryview, not {type(body).__name__}; encode it, for instance with "
        "json.dumps(value).encode(), or give the producer a serializer and pass value="
    )


def _checked_keys(keys: Sequence[str]) -> tuple[str, ...]:
    if type(keys) is not list and type(keys) is not tuple:
        if isinstance(keys, str):
            raise InvalidMessage(f"keys is one str; pass a list of them: keys=[{keys[:80]!r}]")
        if not isinstance(keys, Sequence):
            raise InvalidMessage(f"keys must be a sequence of str, not {type(keys).__name__}")
    try:
        joined = " ".join(keys)
    except TypeError:
        joined = "\x01"  # not printable, so that each key is checked
    # The only printable space is the blank itself.
    if not joined.isprintable() or joined.count(" ") != len(keys) - 1 or "" in keys:
        for key in keys:
            check_key(key)
    return tuple(keys)
