"""The broker that a name service runs in. It is listed without a registration, with its topics as they are now."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from contextlib import suppress

from reput_broker.config.model import BrokerConfig
from reput_broker.tables.config_file import DataVersion
from reput_broker.tables.tables import Tables
from reput_broker.tenure import Master, Tenure
from reput_protocol.codes import Perm
from reput_protocol.commands.topic import QueueData, TopicConfig
from reput_protocol.errors import InvalidName
from reput_protocol.names import group_of_retry_topic


class OwnBroker:
    """What name services list of this broker: the one in it, and those that it registers with.

    Args:
        tenure: returns its role now.
    """

    def __init__(self, config: BrokerConfig, tables: Tables, tenure: Callable[[], Tenure]) -> None:
        self.cluster = config.cluster
        self.name = config.broker_name
        self.topics = tables.topics
        self.start_id = secrets.token_hex(8)
        """Tells this start from another broker of the same name behind the advertised address."""
        self.ha_port: int | None = None
        """Where it serves its log; None if it does not."""
        self.lost_master: Callable[[], Master | None] = lambda: None
        """Of a slave: returns the master that it cannot reach any more."""
        self._tables = tables
        self._tenure = tenure
        self._wiped_at: DataVersion | None = None

    @property
    def tenure(self) -> Tenure:
        """Its role now."""
        return self._tenure()

    @property
    def knows_master(self) -> bool:
        """Whether it is the master, or can reach it."""
        tenure = self.tenure
        return tenure.is_master or tenure.master not in (None, self.lost_master())

    def ha_address(self, address: str) -> str:
        """Return where slaves reach its log, if clients reach it at `address`; empty if it serves none."""
        return "" if self.ha_port is None else f"{address.rpartition(':')[0]}:{self.ha_port}"

    def set_ordered(self, ordered: Collection[str]) -> None:
        """Mark these topics as ordered, and no others."""
        self.topics.set_ordered(ordered)
        self._tables.topics_soon.changed()

    def make_retry_topic(self, topic: str) -> bool:
        """Create a group and its retry topic `topic` if that is allowed; return whether the topic exists now."""
        group = group_of_retry_topic(topic)
        if group is None or not self.tenure.is_master:
            return False
        with suppress(InvalidName):
            config = self._tables.groups.find_or_create(group)
            if config is not None:
                self._tables.groups_soon.changed()
                self._tables.make_retry_topic(config)
        return self.topics.get(topic) is not None

    def queue_data(self, config: TopicConfig) -> QueueData:
        """Return the queues of one of its topics as a route has them."""
        perm = config.perm & ~Perm.WRITE if self.is_wiped else config.perm
        return QueueData(
            self.name, config.read_queue_nums, config.write_queue_nums, perm, config.topic_sys_flag
        )

    @property
    def is_wiped(self) -> bool:
        """Whether routes show its topics without write permission, until the next change of any topic (RocketMQ: a
        registration with another version).
        """
        return self._wiped_at == self.topics.version

    def wipe_write_perm(self) -> int:
        """Show its topics without write permission; return how many."""
        self._wiped_at = self.topics.version
        return len(self.topics.all())

    def add_write_perm(self) -> int:
        """Show its topics as they are again; return how many."""
        self._wiped_at = None
        return len(self.topics.all())
