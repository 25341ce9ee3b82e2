"""The systems that are compared: a server, and a client for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from peers.servers import kafka, nats, rabbitmq, redis, reput
from peers.servers.base import Server
from peers.workloads import Durability


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A server that can be started."""

    name: str
    module: ModuleType

    def start(self, directory: Path, durability: Durability) -> AbstractContextManager[Server]:
        """Start it.

        Raises:
            Missing: on entering; it is not available, or not with that durability.
        """
        start = cast("Callable[[Path, str], AbstractContextManager[Server]]", self.module.start)
        return start(directory, durability)

    def version(self) -> str:
        """Return its version.

        Raises:
            Missing: it cannot be had.
        """
        return str(self.module.version())

    def settings(self, durability: Durability) -> str:
        """Return the settings that differ from the defaults.

        Raises:
            Missing: it has no such durability.
        """
        return str(self.module.settings(durability))


@dataclass(frozen=True, slots=True)
class System:
    """A server and one of its clients: a line of the table."""

    label: str
    server: ServerKind
    driver: tuple[str, str]
    package: str


_REPUT = ServerKind("Reput", reput)
_REDIS = ServerKind("Redis", redis)
_NATS = ServerKind("NATS", nats)
_RABBITMQ = ServerKind("RabbitMQ", rabbitmq)
_KAFKA = ServerKind("Kafka", kafka)

SYSTEMS = (
    System("Reput", _REPUT, ("reput", "Reput"), "reput"),
    System("Kafka, confluent-kafka", _KAFKA, ("confluent", "ConfluentKafka"), "confluent-kafka"),
    System("Kafka, aiokafka", _KAFKA, ("aiokafka_py", "AioKafka"), "aiokafka"),
    System("Redis Streams, redis-py", _REDIS, ("redis_py", "RedisPy"), "redis"),
    System("NATS JetStream, nats-py", _NATS, ("nats_py", "NatsPy"), "nats-py"),
    System("RabbitMQ streams, rstream", _RABBITMQ, ("rstream_py", "Rstream"), "rstream"),
)
