"""The OPTIONS of a backend in `TASKS`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from reput_client.tasks.process_clients import WAIT_MAX_S
from reput_client.tasks.topic_names import checked, quoted
from reput_client.transport.options import ClientOptions
from reput_protocol.codes import Ack, AckLevel
from reput_protocol.names import check_group

_CLIENT: Final = frozenset({"tls", "credentials", "timeout_s", "connect_timeout_s"})
_OWN: Final = frozenset({"server", "name", "ack", "wait_max_s", "outbox"})


class Configuration(NamedTuple):
    """What the OPTIONS of a backend say.

    Attributes:
        client_options: the arguments that all clients have.
        name: what the names of its topics and of its group begin with.
        ack: when `enqueue` returns.
        wait_max_s: seconds for which a message waits in the broker at a time.
        outbox: the alias of the database with the outbox; None: tasks are sent at once.
    """

    client_options: Mapping[str, Any]
    name: str
    ack: Ack
    wait_max_s: float
    outbox: str | None

    @property
    def group(self) -> str:
        """The consumer group of all workers."""
        return f"{self.name}-worker"

    @property
    def results_topic(self) -> str:
        """Where the states of tasks are."""
        return f"{self.name}-results"

    @property
    def tasks_prefix(self) -> str:
        """What the topics of queues begin with."""
        return f"{self.name}-tasks-"

    def topic_of(self, queue: str) -> str:
        """Return the topic of a queue.

        Raises:
            ValueError: the name would be too long.
        """
        return checked(self.tasks_prefix + quoted(queue), f"queue {queue!r}")


def configuration_of(options: Mapping[str, Any], queues: Iterable[str]) -> Configuration:
    """Return the configuration that OPTIONS and QUEUES give.

    Raises:
        ValueError: one is not valid; the text says which, and the remedy.
        TypeError: one has a wrong type.
    """
    unknown = options.keys() - _OWN - _CLIENT
    if unknown:
        raise ValueError(
            f"OPTIONS has {', '.join(sorted(unknown))}; it may have {', '.join(sorted(_OWN | _CLIENT))}"
        )
    server = options.get("server")
    if not server:
        raise ValueError('OPTIONS has no server; give the address of a broker: "server": "127.0.0.1:10911"')
    client_options = {name: options[name] for name in _CLIENT if name in options} | {"address": server}
    ClientOptions(**client_options)
    configuration = Configuration(
        client_options,
        quoted(str(options.get("name", "django"))),
        AckLevel(options.get("ack", "flushed")).value,
        float(options.get("wait_max_s", WAIT_MAX_S)),
        options.get("outbox"),
    )
    if configuration.wait_max_s <= 0:
        raise ValueError(f"wait_max_s must be more than 0, not {configuration.wait_max_s}")
    if configuration.outbox is not None and not isinstance(configuration.outbox, str):
        raise TypeError('outbox is the alias of a database: "outbox": "default"')
    check_group(configuration.group)
    for queue in queues:
        configuration.topic_of(queue)
    return configuration
