"""The ids that this process's producers write into `UNIQ_KEY`."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Sequence

from reput_protocol.message import Message
from reput_protocol.message_id import UniqueIdGenerator


def new_generator() -> UniqueIdGenerator:
    """Return a generator for this process; its random part keeps ids of equal containers apart."""
    return UniqueIdGenerator(
        own_address(),
        os.getpid(),
        random.SystemRandom().getrandbits(32),
        lambda: time.time_ns() // 1_000_000,
    )


def ids_for(messages: Sequence[Message], generator: UniqueIdGenerator | None) -> list[str | None]:
    """Return the id of each message: its own, or a fresh one if there is a generator."""
    if generator is None:
        return [message.unique_id for message in messages]
    fresh = generator.next_many(len(messages))
    return [message.unique_id or own for message, own in zip(messages, fresh, strict=True)]


def own_address() -> bytes:
    """Return the IPv4 address that this machine would use towards the outside; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address reserved for documentation
            return socket.inet_aton(probe.getsockname()[0])
        except OSError:
            return socket.inet_aton("127.0.0.1")
