"""Dead letters, made as a broker makes them: a consumer gives messages up."""

from __future__ import annotations

from collections.abc import Callable

from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_client.consume.send_back import DEAD_LETTER, send_back
from reput_client.received import ReceivedMessage
from reput_protocol.record.message import MessageQueue


def give_up(
    address: str,
    group: str,
    topic: str,
    *,
    wanted: Callable[[ReceivedMessage], bool] = lambda _: True,
    reason: str | None = None,
    by_consumer: bool = False,
) -> None:
    """Give up those messages of a topic, oldest first.

    Args:
        by_consumer: whether the consumer asks for a dead letter; else the message was redelivered too often.
    """
    with Admin(address, timeout_s=30.0) as admin, PullConsumer(address, group=group, timeout_s=30.0) as consumer:
        found: list[ReceivedMessage] = []
        for name, config in admin.topic_configs(topic).items():
            for queue_id in range(config.read_queue_nums):
                offset = 0
                while True:
                    result = consumer.pull(topic, queue_id, offset, max_messages=256, wait_s=0.0, broker_name=name)
                    found += filter(wanted, result.messages)
                    if not result.messages:
                        break
                    offset = result.next_begin_offset
        for message in sorted(found, key=lambda one: one.store_timestamp_ms):
            consumer._runtime.run(
                send_back(
                    consumer._client._session,
                    message,
                    group=group,
                    queue=MessageQueue(topic, message.broker_name, message.queue_id),
                    delay_level=DEAD_LETTER if by_consumer else 0,
                    max_reconsume_times=0,
                    reason=reason,
                )
            )
        admin.flush_log()


def send_and_give_up(address: str, group: str, topic: str, bodies: list[bytes]) -> None:
    """Send messages to a topic that does not exist yet, and give them up."""
    with Admin(address, timeout_s=30.0) as admin, Producer(address, timeout_s=30.0) as producer:
        admin.create_topic(topic, queues=1)
        for body in bodies:
            producer.send(Message(topic, body))
    with PullConsumer(address, group=group, timeout_s=30.0) as consumer:
        assert consumer.pull(topic, 0, len(bodies) - 1, wait_s=20.0).messages, "the last one is there"
    give_up(address, group, topic)
