"""Messages of the conformance tests: every form that the format knows, in many queues."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from reput_protocol.names import RETRY_PREFIX, SCHEDULE_TOPIC, TRANS_HALF_TOPIC

TOPICS = {"orders": 4, "payments": 2, "%RETRY%billing": 1}
"""Ordinary topics and their numbers of queues."""
LONG_TOPICS = (
    RETRY_PREFIX + "g" * 120,  # the longest that version 1 of a record holds
    RETRY_PREFIX + "h" * 121,  # the shortest that takes version 2
    RETRY_PREFIX + "i" * 248,
)
TAGS = (None, "TagA", "TagB", "AaAa", "BBBB", "order-created", "polygenelubricants", "\U0001f600", "\u8ba2\u5355")
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
KEY_SHARED_BY = 8


@dataclass(frozen=True, slots=True)
class Sent:
    """One message and where it goes."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_ip: str = "10.0.0.1"
    reconsume_times: int = 0

    @property
    def is_queued(self) -> bool:
        """Whether it gets a place in its queue: prepared and rolled back transactions do not."""
        return self.sys_flag & 0xC not in (PREPARED, ROLLBACK)


def messages(seed: int, count: int, *, for_clients: bool = False) -> Iterator[list[Sent]]:
    """`count` messages in lists: of one element, to be put alone, or of more, to be put as one batch.

    Args:
        seed: the same seed gives the same messages.
        count: how many messages, all lists together.
        for_clients: leave out what only a broker itself stores, and empty bodies, which RocketMQ's client refuses.
    """
    rng = Random(seed)
    body_min = 1 if for_clients else 0
    made = 0
    while made < count:
        choice = rng.random()
        if choice < 0.1 and count - made > 20:
            size = rng.randrange(2, 21)
            topic = rng.choice([*TOPICS][:2])
            queue_id = rng.randrange(TOPICS[topic])
            batch = [_ordinary(rng, topic, queue_id, f"{seed}-{made + k}", 1000, body_min) for k in range(size)]
            made += size
            yield batch
            continue
        name = f"{seed}-{made}"
        made += 1
        if choice < 0.8 or for_clients:
            topic = rng.choice([*TOPICS][: 2 if for_clients else 3])
            yield [_ordinary(rng, topic, rng.randrange(TOPICS[topic]), name, body_min=body_min)]
        else:
            yield [_special(rng, name)]


def _ordinary(rng: Random, topic: str, queue_id: int, name: str, body_max: int = 30_000, body_min: int = 0) -> Sent:
    properties = {"UNIQ_KEY": f"{name:0>32}"} if rng.random() < 0.8 else {}
    tag = rng.choice(TAGS)
    if tag is not None:
        properties["TAGS"] = tag
    if rng.random() < 0.7:
        number = rng.randrange(1000)
        keys = [f"k{number // KEY_SHARED_BY}"]
        if rng.random() < 0.1:
            keys += [rng.choice(("Aa", "BB")), f"\u8ba2{number}"]
        properties["KEYS"] = " ".join(keys)
    if rng.random() < 0.2:
        properties["colour"] = "blue\u00e9" * rng.randrange(1, 40)
    body = _body(rng, name)[:body_max] or bytes(body_min)
    return Sent(topic, queue_id, body, properties, flag=rng.randrange(-5, 5))


def _special(rng: Random, name: str) -> Sent:
    properties = {"UNIQ_KEY": f"{name:0>32}", "KEYS": f"s{name}"}
    match rng.randrange(6):
        case 0 | 1:
            return Sent(rng.choice(LONG_TOPICS), 0, _body(rng, name), {**properties, "TAGS": "TagA"}, reconsume_times=3)
        case 2:
            level = rng.choice((1, 3, 18, 25))
            parked = {"REAL_TOPIC": "orders", "REAL_QID": "1", "DELAY": str(level), "TAGS": "TagB"}
            return Sent(SCHEDULE_TOPIC, level - 1, _body(rng, name), {**properties, **parked})
        case 3:
            half = {"REAL_TOPIC": "payments", "REAL_QID": "0", "TRAN_MSG": "true"}
            return Sent(
                TRANS_HALF_TOPIC, 0, _body(rng, name), {**properties, **half}, sys_flag=rng.choice((0, PREPARED))
            )
        case 4:
            return Sent("payments", 1, _body(rng, name), properties, sys_flag=rng.choice((COMMIT, ROLLBACK, PREPARED)))
        case _:
            # compressed, from a producer with an IPv6 address
            return Sent("orders", 2, _body(rng, name), properties, sys_flag=0x1, born_ip="2001:db8::7")


def _body(rng: Random, name: str) -> bytes:
    if rng.random() < 0.02:
        return b""
    size = rng.choice((1, 30, 200, 1000, 3000)) if rng.random() < 0.99 else 30_000
    return (name.encode() + b" " + rng.randbytes(16) * (size // 16 + 1))[: max(size, len(name))]


def queued(lists: list[list[Sent]]) -> dict[tuple[str, int], list[Sent]]:
    """The messages of each queue, in order."""
    queues: dict[tuple[str, int], list[Sent]] = {}
    for batch in lists:
        for sent in batch:
            if sent.is_queued:
                queues.setdefault((sent.topic, sent.queue_id), []).append(sent)
    return queues


def from_base64(text: str) -> bytes:
    """A body as the Java program prints it."""
    return base64.b64decode(text)
