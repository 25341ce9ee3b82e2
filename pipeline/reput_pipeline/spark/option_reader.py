"""Options of source and sink: names, rules for other names, and values.

Spark also passes the name and checkpoint of a stream, and for a table of the catalogue its properties and a second copy
of each option under the prefix `option.`.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from reput_client.errors import TlsRefused
from reput_client.security import TLS, Credentials, credentials_of

TLS_OPTIONS: Final = ("tls", "tlsCa", "tlsCert", "tlsKey", "tlsServerName")
"""Of source and sink; documented spelling."""

SOURCE_OPTIONS: Final = (
    "nameServer",
    "user",
    "secretFile",
    "path",
    "subscribe",
    "subscribePattern",
    "includeSystemTopics",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "failOnDataLoss",
    "onDamage",
    "includeHeaders",
    "subExpression",
    "columns",
    "select",
    "groupId",
    "pullTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    *TLS_OPTIONS,
)
"""Documented spelling; Spark ignores case."""

SINK_OPTIONS: Final = (
    "nameServer",
    "user",
    "secretFile",
    "topic",
    "semantics",
    "idempotencyKey",
    "ack",
    "queueMapping",
    "onBadRow",
    "deadLetterTopic",
    "sendTimeoutMs",
    "commitTimeoutMs",
    *TLS_OPTIONS,
)
"""Documented spelling."""

_SPARKS_OWN: Final = frozenset(
    (
        "queryname",
        "checkpointlocation",
        "path",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
    )
)
"""Options that Spark passes to every source and sink; `path` is also the source's."""
_OF_ALL_TABLES: Final = "provider"
"""A property that every table of Spark's catalogue has."""
_TABLE_PREFIX: Final = "option."
_NO_OPTIONS: Final = (
    " (Spark does not pass a table's options to the source if CREATE TABLE declares columns: leave them out, or "
    "give the options with SELECT ... FROM table WITH (...), or CREATE TEMPORARY VIEW)"
)
_OF_KAFKA: Final = {"kafka.bootstrap.servers": "nameServer"}
"""Options of Spark's Kafka source and sink that have another name here."""
_NEAR: Final = 0.6


class OptionError(ValueError):
    """An option is unknown, invalid, or contradicts another; nothing was read or written."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"option {option}: {reason}")
        self.option = option
        self.reason = reason


def check_names(given: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Return the source's options that were given, documented to given spelling.

    Raises:
        OptionError: a name is unknown; names the nearest.
    """
    by_lower = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for name in given:
        proper = by_lower.get(name.lower())
        if proper is None:
            near = difflib.get_close_matches(name.lower(), by_lower, 1, 0.5)
            hint = f"did you mean {by_lower[near[0]]}?" if near else f"it knows {', '.join(by_lower.values())}"
            raise OptionError(name, f"the source has no such option; {hint}")
        found[proper] = name
    return found


class UserOption(NamedTuple):
    """The user that signs the requests, and the file with its secret on each executor."""

    user: str
    secret_file: str

    @classmethod
    def of(cls, reader: OptionReader) -> UserOption | None:
        """Return the user that the options name; None: that of the environment, if there is one.

        Raises:
            OptionError: one of the two options is missing.
        """
        user, file = reader.text("user"), reader.text("secretFile")
        if user is None and file is None:
            return None
        if user is None or file is None:
            missing, given = ("user", "secretFile") if user is None else ("secretFile", "user")
            raise OptionError(missing, f"is missing, and {given} is given; a user needs both")
        return cls(user, file)

    def credentials(self) -> Credentials:
        """Read the file, and return the user with its secret. Raises OptionError."""
        try:
            return credentials_of(self.user, self.secret_file)
        except ValueError as error:
            raise OptionError("secretFile", str(error)) from None


def credentials_for(user: UserOption | None) -> Credentials | None:
    """Return the user of an option with its secret; None: that of the environment. Raises OptionError."""
    return None if user is None else user.credentials()


def is_table(options: Mapping[str, str]) -> bool:
    """Return whether the options are those of a table of Spark's catalogue."""
    return any(name.lower() == _OF_ALL_TABLES or name.lower().startswith(_TABLE_PREFIX) for name in options)


def options_for(
    known: Iterable[str], options: Mapping[str, str], role: str, others: Iterable[str] = ()
) -> dict[str, str]:
    """Return the known options' values by documented spelling.

    Spark's own options and a table's properties are ignored, other unknown names with a warning, as in Spark's Kafka
    source and sink.

    Args:
        known: the options of this side.
        options: as passed by Spark.
        role: `source` or `sink`, for messages.
        others: those of the other side; a table may have both.

    Raises:
        OptionError: a name resembles a known one, or is the other side's.
    """
    by_lower = {name.lower(): name for name in known}
    theirs = {name.lower() for name in others}
    given = {name.lower(): str(value) for name, value in options.items()}
    copies = {
        name.removeprefix(_TABLE_PREFIX): value for name, value in given.items() if name.startswith(_TABLE_PREFIX)
    }
    of_table = is_table(options)
    found: dict[str, str] = {}
    for name, value in (copies | given).items():
        proper = by_lower.get(name)
        if proper is not None:
            found[proper] = value.strip()
            continue
        if name in _SPARKS_OWN or name.startswith(_TABLE_PREFIX):
            continue
        if of_table and (name in theirs or name not in copies):
            continue
        near = difflib.get_close_matches(name, by_lower, 1, _NEAR)
        meant = _OF_KAFKA.get(name) or (by_lower[near[0]] if near else None)
        if meant is not None:
            raise OptionError(name, f"the {role} has no such option; did you mean {meant}?")
        if name in theirs:
            other = "sink" if role == "source" else "source"
            raise OptionError(name, f"the {role} has no such option, it is one of the {other}; leave it out")
        warnings.warn(f"option {name} is not one of the {role} and has no effect", stacklevel=2)
    return found


class OptionReader:
    """Parses the values of options."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Take the values that `options_for` returned."""
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        """Return the value of an option, or None if it was not given.

        Raises:
            OptionError: it is empty.
        """
        value = self._values.get(name)
        if value == "":
            raise OptionError(name, "is empty; give it a value or leave it out")
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return one of `choices`, ignoring case, or the default."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in choices:
            raise OptionError(name, f"is {value!r}; it is one of {', '.join(choices)}")
        return value.lower()

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean option, or the default."""
        return self.choice(name, ("true", "false"), "true" if default else "false") == "true"

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        """Return an integer of at least `least`, or the default."""
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdecimal() and int(value) >= least):
            raise OptionError(name, f"is {value!r}; it is an integer of at least {least}")
        return int(value)

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """Refuse options that have no meaning here.

        Raises:
            OptionError: one of them was given.
        """
        for name in names:
            if name in self._values:
                raise OptionError(name, reason)

    def missing(self, name: str, remedy: str) -> OptionError:
        """Return the error for a required option."""
        return OptionError(name, f"is missing; {remedy}{'' if self._values else _NO_OPTIONS}")

    def exactly_one(self, *names: str) -> str:
        """Return which of the names was given.

        Raises:
            OptionError: none or more than one was given.
        """
        given = [name for name in names if name in self._values]
        if not given:
            raise self.missing(names[0], f"give exactly one of {', '.join(names)}")
        if len(given) > 1:
            raise OptionError(given[1], f"contradicts {given[0]}; give exactly one of {', '.join(names)}")
        return given[0]


_FILES: Final = ("tlsCa", "tlsCert", "tlsKey")


def read_tls(reader: OptionReader) -> TLS | None:
    """Return how to encrypt; None for not at all. The files are those of the machine that connects.

    Raises:
        OptionError: an option contradicts another.
    """
    if reader.flag("tls", any(name in reader for name in TLS_OPTIONS)):
        ca, cert, key = map(reader.text, _FILES)
        if key is not None and cert is None:
            raise OptionError("tlsKey", "is the key of tlsCert, which is not given")
        return TLS(ca, cert, key, reader.text("tlsServerName"))
    reader.refuse(TLS_OPTIONS[1:], "contradicts tls=false")
    return None


def with_tls_options(error: TlsRefused) -> TlsRefused:
    """Return an error of TLS whose remedy names options of source and sink."""
    from reput_client.transport.new_socket import CONNECT_WITH_TLS, CORRECT_TLS
    from reput_protocol.wire.tls import GIVE_CA, GIVE_CERTIFICATE, NO_TLS, SET_NAME

    remedies = {
        CONNECT_WITH_TLS: "set the option tlsCa to the file of its authority, or tls to true",
        CORRECT_TLS: "correct the options tlsCa, tlsCert, tlsKey and tlsServerName",
        GIVE_CA: "set the option tlsCa to the file of the authority that has signed it",
        GIVE_CERTIFICATE: "set the options tlsCert and tlsKey to a certificate, and its key, that is accepted there",
        NO_TLS: "leave out the options of TLS, or turn TLS on there",
        SET_NAME: "connect by one of its names, or set the option tlsServerName to one of them",
    }
    return TlsRefused(error.address, error.cause, remedies.get(error.remedy, error.remedy))


@contextmanager
def naming_tls_options() -> Iterator[None]:
    """Have errors of TLS name the options of source and sink, not what sets them in other programs."""
    try:
        yield
    except TlsRefused as error:
        raise with_tls_options(error) from None
