"""Finding the topic that a request names, and refusing what is not permitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import Refusal
from reput_broker.tables.table_saver import TableSaver
from reput_broker.tables.topics import TooManyTopics, TopicConfigManager, why_not_kept
from reput_protocol.codes import Perm
from reput_protocol.commands.topic import TopicConfig
from reput_protocol.errors import ErrorCode
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic, only_broker_writes


@dataclass(eq=False, repr=False)
class TopicAccess:
    """Checks the topics of requests that send or read."""

    _topics: TopicConfigManager
    _saver: TableSaver
    _counters: Counters

    def writable(self, topic: str, queue_id: int) -> TopicConfig | None:
        """Return the topic if it accepts messages in this queue; None if it does not exist.

        Raises:
            Refusal: NO_PERMISSION or INVALID_ARGUMENT.
        """
        config = self._topics.get(topic)
        if config is None:
            return None
        if why_not_kept(topic, config.attributes) is not None:
            self._refuse_unkept(topic, config.attributes)
        if not config.perm & Perm.WRITE or only_broker_writes(topic):
            self._counters.rejected["no_permission"] += 1
            why = "belongs to the system" if only_broker_writes(topic) else "is not writable"
            raise Refusal(ErrorCode.NO_PERMISSION, f"topic {topic!r} {why}; send to another topic or alter it")
        if queue_id >= max(config.write_queue_nums, config.read_queue_nums) or queue_id < 0:
            raise _no_queue(topic, queue_id, max(config.write_queue_nums, config.read_queue_nums))
        return config

    def created(self, topic: str, queue_id: int) -> TopicConfig:
        """Return what `writable` returns of a topic that has to exist; NO_TOPIC if it does not, or does no more."""
        config = self.writable(topic, queue_id)
        if config is None:
            raise no_topic(topic)
        return config

    def may_write(self, topic: str, queue_id: int) -> bool:
        """Tell whether `writable` would return the topic; does not refuse or count."""
        config = self._topics.get(topic)
        return (
            config is not None
            and bool(config.perm & Perm.WRITE)
            and not only_broker_writes(topic)
            and why_not_kept(topic, config.attributes) is None
            and 0 <= queue_id < max(config.write_queue_nums, config.read_queue_nums)
        )

    async def create_on_send(self, topic: str, queues: int | None = None, *, is_wanted: bool | None = None) -> None:
        """Create the topic of a send, and save the table before the message is stored.

        Args:
            is_wanted: False: the sender creates its topics itself.

        Raises:
            Refusal: NO_TOPIC if that is not allowed or not wanted, INVALID_ARGUMENT for a kind of topic that is not
                supported.
            InvalidName: the name is not legal.
        """
        await self._topics.left(topic)
        make = self._topics.get if is_wanted is False else partial(self._topics.create_on_send, queues=queues)
        self._allowed(topic, make)
        await self._saver.save()

    def expires(self, topic: str) -> bool:
        """Tell whether messages of a topic may expire, so that they are looked at before they are delivered."""
        return topic in self._topics.expiring

    async def mark_expiring(self, config: TopicConfig) -> None:
        """Note that a topic gets a message that expires, and save the table before the message is stored."""
        self._topics.mark_expiring(config)
        await self._saver.save()

    def check_new(self, topic: str, queue_id: int) -> None:
        """Check that a topic that does not exist could be created now, and would have this queue.

        Raises as `create_on_send`.
        """
        settings = self._allowed(topic, self._topics.new_on_send)
        if not 0 <= queue_id < settings.write_queue_nums:
            raise _no_queue(topic, queue_id, settings.write_queue_nums)

    @property
    def new_topic_queues(self) -> int:
        """How many queues `create_on_send` gives a topic."""
        return self._topics.new_topic_queues

    def _allowed(self, topic: str, make: Callable[[str], TopicConfig | None]) -> TopicConfig:
        self._refuse_unkept(topic, {})
        try:
            made = None if only_broker_writes(topic) else make(topic)
        except TooManyTopics as error:
            self._counters.rejected["no_topic"] += 1
            raise Refusal(ErrorCode.NO_TOPIC, str(error)) from error
        if made is None:
            self._counters.rejected["no_topic"] += 1
            raise no_topic(topic)
        return made

    def known(self, topic: str) -> TopicConfig | None:
        """Return a topic's settings, None if it does not exist."""
        return self._topics.get(topic)

    def of_accepted(self, topic: str, queue_id: int, stored_ms: int) -> TopicConfig | None:
        """See `TopicConfigManager`."""
        return self._topics.of_accepted(topic, queue_id, stored_ms)

    async def create_internal(self, topic: str, queues: int = 1) -> TopicConfig:
        """Return a group's retry or dead-letter topic, created and saved first if it does not exist.

        Raises:
            InvalidName: the group's name cannot be part of a topic name.
        """
        existing = self._topics.get(topic)
        if existing is not None:
            return existing
        await self._topics.left(topic)
        config = self._topics.create_internal(topic, queues)
        await self._saver.save()
        return config

    def _refuse_unkept(self, topic: str, attributes: Mapping[str, str]) -> None:
        reason = why_not_kept(topic, attributes)
        if reason is not None:
            self._counters.rejected["no_permission"] += 1
            raise Refusal(ErrorCode.INVALID_ARGUMENT, reason)

    def readable(self, topic: str, queue_id: int) -> TopicConfig:
        """Return the topic if it can be read in this queue.

        Raises:
            Refusal: NO_TOPIC, NO_PERMISSION or INVALID_ARGUMENT.
        """
        config = self._topics.get(topic)
        if config is None:
            raise no_topic(topic)
        if not config.perm & Perm.READ:
            raise Refusal(ErrorCode.NO_PERMISSION, f"topic {topic!r} is not readable; alter its permission")
        if not 0 <= queue_id < config.read_queue_nums:
            raise _no_queue(topic, queue_id, config.read_queue_nums)
        return config

    def check_queue(self, topic: str, queue_id: int) -> TopicConfig:
        """Return the topic if it has this queue, or had it while it was larger.

        Raises:
            Refusal: NO_TOPIC or INVALID_ARGUMENT.
        """
        config = self.existing(topic)
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < queues:
            raise _no_queue(topic, queue_id, queues)
        return config

    def existing(self, topic: str) -> TopicConfig:
        """Return the topic, or refuse with NO_TOPIC."""
        config = self._topics.get(topic)
        if config is None:
            raise no_topic(topic)
        return config


def no_topic(topic: str) -> Refusal:
    """Return the refusal for a topic that does not exist."""
    if is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        remedy = "the broker creates it when it needs it"
    else:
        remedy = "create it first"
    return Refusal(ErrorCode.NO_TOPIC, f"topic {topic!r} does not exist; {remedy}")


def _no_queue(topic: str, queue_id: int, queues: int) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_ARGUMENT, f"topic {topic!r} has no queue {queue_id}; its queues are 0 to {queues - 1}"
    )
