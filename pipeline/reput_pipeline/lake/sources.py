"""Where messages are from: elsewhere the same offsets are other messages. A table holds the sources of its topics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from reput_client.arrow.queues import QueueKey, TopicKey
from reput_client.arrow.urls import directory_of, is_remote, without_secret
from reput_client.transport.address import Address, parse_address
from reput_pipeline.archives.batches import addresses_of
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.resolve import Catalog
from reput_protocol.errors import ReputError

Sources: TypeAlias = Mapping[TopicKey, str]
"""Where topics are from: the addresses of their broker, or a store directory.

The broker is empty for a directory that was not counted as a broker's.
"""


class OtherSource(ReputError):
    """An archive or a table has messages of another place."""

    def __init__(self, where: str, found: str, now: str, remedy: str = "") -> None:
        super().__init__(f"{where} is of {found}, not of {now}; name another directory{remedy}")


SAME_SOURCE = ", or, if that is the same place under another address, give --same-source"
"""What helps if a source may have got another address."""


def place_of(path: str) -> str:
    """Return the place of a store directory: its absolute path, or its URL without secrets."""
    if is_remote(path):
        return without_secret(path).partition("?")[0].rstrip("/")
    return str(directory_of(path).absolute())


def is_directory(place: str) -> bool:
    """Tell whether a place is a store directory, and not brokers: `broker.example:10911` is no URL."""
    return place.startswith("/") or ":/" in place


def is_same_source(before: str, now: str) -> bool:
    """Whether two sources are the same: a directory, or brokers of the same names.

    Each broker must have an address in common. The others may differ, since after a failover a member of the group may
    be away.
    """
    if before == now or is_directory(before) or is_directory(now):
        return before == now
    there, here = _brokers_in(before), _brokers_in(now)
    return there.keys() == here.keys() and all(there[name] & here[name] for name in there)


def _brokers_in(source: str) -> dict[str, set[Address]]:
    parts = (part.partition(" at ") for part in re.split(r", (?=\S+ at )", source))
    return {name: set(_addresses_in(text)) for name, _, text in parts}


def _addresses_in(text: str) -> Iterator[Address]:
    """Yield addresses between spaces; earlier versions also wrote them as `nameServer` was given."""
    for part in re.split(r"[\s,;]+", text):
        if part:
            yield parse_address(part)


def sources_of(
    catalog: Catalog, options: SourceOptions, queues: Iterable[QueueKey], as_broker: str
) -> dict[TopicKey, str]:
    """Return the sources of the topics of queues.

    Args:
        catalog: the brokers or the directory.
        options: of the source.
        queues: to be copied.
        as_broker: the broker of the directory; empty if it is not given, or for brokers.
    """
    if options.path is not None:
        return dict.fromkeys(((queue.topic, as_broker) for queue in queues), place_of(options.path))
    addresses = addresses_of(catalog)
    return {
        (queue.topic, queue.broker): addresses[queue.broker] for queue in queues if queue.broker in addresses
    }


def check_source(
    where: str, known: Sources, key: TopicKey, place: str, *, is_same_topic: bool, same_source: bool
) -> None:
    """Check that a table may continue a topic with the messages of a place.

    A table from before sources were noted has none, and may continue; the next commit with messages of the topic
    stores it.

    Args:
        where: the table, for the error.
        known: its sources.
        key: the topic and its broker.
        place: where it is read now.
        is_same_topic: whether the topic's generation is the table's: then brokers may have other addresses.
        same_source: whether a place that looks different is the same one.

    Raises:
        OtherSource: it has the topic's messages of another place, or every queue would count as new.
    """
    topic, broker = key
    found = {other: at for (of, other), at in known.items() if of == topic}
    before = found.get(broker)
    if not found or before == place:
        return
    texts = (
        f"topic {topic} in {where}",
        ", ".join(_named(other, at) for other, at in sorted(found.items())),
        _named(broker, place),
    )
    if before is None:
        if ("" in found) != (broker == ""):
            # A directory has no broker name: every queue would count as new.
            named = (
                "" if broker else f", or, if that is the directory of {' or '.join(found)}, give --as-broker"
            )
            raise OtherSource(*texts, named)
        return
    if same_source or (broker and is_directory(before) != is_directory(place)):
        return  # --as-broker says whose directory it is
    is_broker = not is_directory(place)
    if is_broker and (is_same_topic or is_same_source(_named(broker, before), _named(broker, place))):
        return
    raise OtherSource(*texts, SAME_SOURCE)


def encode_sources(sources: Sources) -> dict[str, dict[str, str]]:
    """Return sources by topic and broker, for JSON."""
    topics: dict[str, dict[str, str]] = {}
    for (topic, broker), place in sorted(sources.items()):
        topics.setdefault(topic, {})[broker] = place
    return topics


def decode_sources(data: Mapping[str, Mapping[str, str]]) -> dict[TopicKey, str]:
    """Return the sources that `encode_sources` has encoded."""
    return {(topic, broker): place for topic, brokers in data.items() for broker, place in brokers.items()}


def _named(broker: str, place: str) -> str:
    return f"{broker} at {place}" if broker else place
