"""What pages are made from: a client of this broker with the rights of their user, the parameters of a
request, and bodies as values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reput_broker.console.members import AskedCluster
from reput_client.errors import DamagedMessage, RegistryRefused, RegistryUnavailable
from reput_client.message_json import NOT_DECODED
from reput_protocol.errors import ReputError
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX
from reput_protocol.printable import printable, printable_json
from reput_protocol.record.dead_letter import dead_letter_origin

if TYPE_CHECKING:
    from reput_client.admin import Admin
    from reput_client.received import ReceivedMessage
    from reput_client.serialize.decoders import Decode

ROWS_MAX = 1000
"""Rows of one table; a search finds those beyond."""


class InvalidQuery(Exception):
    """A parameter of a page is missing or invalid; the text says which, and what is valid."""


class Source(NamedTuple):
    """What a page has.

    Attributes:
        admin: a client of the broker that the page is about: this one, or another one of the cluster.
        at_ms: the time of this broker's clock.
        own_admin: a client of this broker.
        cluster: all brokers, asked with the rights of the page's user.
        bodies: what this broker's configuration says of messages; so does `serves_sql`.
    """

    admin: Admin
    at_ms: int
    own_admin: Admin
    cluster: AskedCluster
    bodies: Bodies
    serves_sql: bool


@dataclass(eq=False, repr=False)
class Query:
    """The parameters of a page, checked."""

    _values: Mapping[str, Any]

    def text(self, name: str, *, size_max: int = 1024, keeps_spaces: bool = False) -> str:
        """Return a text, "" if it is missing; without spaces at its ends, unless `keeps_spaces` is set."""
        value = self._values.get(name, "")
        if not isinstance(value, str):
            raise InvalidQuery(f"{name} is not a text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidQuery(f"{name} has half of a character") from None
        if len(value) > size_max:
            raise InvalidQuery(f"{name} has {len(value)} characters, and at most {size_max} are accepted")
        return value if keeps_spaces else value.strip()

    def members(self, name: str) -> Mapping[str, Any]:
        """Return an object, empty if it is missing."""
        value = self._values.get(name, {})
        if not isinstance(value, dict):
            raise InvalidQuery(f"{name} is not a JSON object")
        return value

    def flag(self, name: str) -> bool:
        """Return whether a flag is set: `true` in JSON."""
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise InvalidQuery(f"{name} is {str(value)[:40]!r}, and must be true or false")
        return value

    def needed(self, name: str) -> str:
        """Return a text that is not empty."""
        value = self.text(name)
        if not value:
            raise InvalidQuery(f"{name} is missing")
        return value

    def signed(self, name: str, default: int) -> int:
        """Return a whole number, which may be negative."""
        return self.number(name, default, -(1 << 62), 1 << 62)

    def number(self, name: str, default: int, low: int = 0, high: int = (1 << 63) - 1) -> int:
        """Return a whole number within `[low, high]`."""
        value = self._values.get(name, "")
        if value == "":
            return default
        text = str(value)
        if isinstance(value, bool | float) or not text.lstrip("-").isdecimal() or not text.isascii():
            raise InvalidQuery(f"{name} is {text[:40]!r}, and a whole number is needed")
        number = int(text) if len(text) <= 20 else high + 1
        if not low <= number <= high:
            raise InvalidQuery(f"{name} is {text[:40]}, and must be within {low} and {high}")
        return number


DECODED_BYTES_MAX: Final = 1 << 20
"""Larger bodies are not decoded."""
_REGISTRY_TIMEOUT_S: Final = 3.0
_TRIED_AGAIN_S: Final = 10.0
"""After a file or a registry could not be used."""
_TOPICS_MAX: Final = 1000
_PREVIEW_CHARS: Final = 160
_PREVIEW_BYTES: Final = 640


class DecodedBody(NamedTuple):
    """A body as a value; `value` is `NOT_DECODED` if it has none, and `trouble` says why if its topic has a form."""

    form: str | None
    value: Any
    trouble: str | None = None


_NOTHING: Final = DecodedBody(None, NOT_DECODED)


class Bodies:
    """Decodes bodies by the forms that `console.decoders` gives for topics, else by the look of the body.

    Everything here may block, so that pages call it in a worker thread.

    Args:
        decoders: `PATTERN=FORM`, as the option has them; the first whose pattern matches a topic counts.
    """

    def __init__(self, decoders: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._forms = [_Form(pattern, form, clock) for pattern, _, form in (each.partition("=") for each in decoders)]
        self._of_topics: dict[str, _Form | None] = {}

    def decoded(self, message: ReceivedMessage) -> DecodedBody:
        """Return the value of a message's body; never raises."""
        try:
            if message.record_bytes > DECODED_BYTES_MAX:
                return _NOTHING
            body = message.body
            form = self._form_of(_topic_of(message))
        except ReputError:
            return _NOTHING
        if len(body) > DECODED_BYTES_MAX:
            return _NOTHING
        return _guessed(body) if form is None else form.decoded(body)

    def preview(self, message: ReceivedMessage) -> str:
        """Return the start of a body on one line: of its value, else of its text. Compressed ones have none."""
        body = message.raw_body
        decoded = self.decoded(message) if self._forms or not _is_text(body[:_PREVIEW_BYTES]) else _NOTHING
        if decoded.value is not NOT_DECODED and decoded.form != "json":
            return printable_json(decoded.value)[:_PREVIEW_CHARS]
        return printable(body[:_PREVIEW_BYTES].decode("utf-8", "replace")[:_PREVIEW_CHARS])

    def _form_of(self, topic: str) -> _Form | None:
        if topic not in self._of_topics:
            if len(self._of_topics) >= _TOPICS_MAX:
                self._of_topics.clear()
            self._of_topics[topic] = next((form for form in self._forms if fnmatchcase(topic, form.pattern)), None)
        return self._of_topics[topic]


class _Form:
    """A form, whose decoder is made at its first use."""

    def __init__(self, pattern: str, form: str, clock: Callable[[], float]) -> None:
        self.pattern = pattern
        self._form = form
        self._name = form.partition(":")[0]
        self._clock = clock
        self._decode: Decode | None = None
        self._failed_until = 0.0
        self._failure = ""

    def decoded(self, body: bytes) -> DecodedBody:
        """Return the value of a body."""
        if self._clock() < self._failed_until:
            return DecodedBody(None, NOT_DECODED, self._failure)
        if self._decode is None:
            from reput_client.serialize.decoders import body_decoder, registry_credentials

            try:
                self._decode = body_decoder(
                    self._form, credentials=registry_credentials(), timeout_s=_REGISTRY_TIMEOUT_S
                )
            except (ModuleNotFoundError, OSError, ValueError) as error:
                return self._failed(f"console.decoders has {self._form!r}: {error}")
        try:
            return DecodedBody(self._name, self._decode(body))
        except (RegistryRefused, RegistryUnavailable) as error:
            return self._failed(str(error))
        except Exception as error:  # of many kinds, for a body that is not of the form
            return DecodedBody(None, NOT_DECODED, f"it is not {self._name}: {type(error).__name__}: {error}")

    def _failed(self, reason: str) -> DecodedBody:
        self._failure = reason
        self._failed_until = self._clock() + _TRIED_AGAIN_S
        return DecodedBody(None, NOT_DECODED, reason)


def _guessed(body: bytes) -> DecodedBody:
    from reput_client.serialize.decoders import guessed_value

    found = guessed_value(body)
    return _NOTHING if found is None else DecodedBody(*found)


def _topic_of(message: ReceivedMessage) -> str:
    """Return the topic to which a message was sent first: a retry or dead letter has the body of its origin."""
    if not message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return message.topic
    try:
        origin = dead_letter_origin(message.properties, message.offset_message_id)
    except DamagedMessage:
        return message.topic
    return origin.topic or message.topic


def _is_text(head: bytes) -> bool:
    for cut in range(4):  # which may split the last character
        try:
            head[: len(head) - cut].decode()
        except UnicodeDecodeError:
            continue
        return True
    return False
