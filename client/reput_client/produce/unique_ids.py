"""Generation of the unique ids that this process's producers write into `UNIQ_KEY`."""

from __future__ import annotations

import os
import random
import socket

from reput_client.transport.session import wall_clock_ms
from reput_protocol.properties import UNIQ_KEY
from reput_protocol.record.message_id import UniqueIdGenerator


def new_generator() -> UniqueIdGenerator:
    """Return a generator for this process; a random part separates processes of equal containers."""
    return UniqueIdGenerator(own_address(), os.getpid(), random.SystemRandom().getrandbits(32), wall_clock_ms)


def id_text_bytes(generator: UniqueIdGenerator | None) -> int:
    """Return the size of a generator's id in the encoded properties."""
    return 0 if generator is None else len(UNIQ_KEY) + generator.id_size + 2


def own_address() -> bytes:
    """Return this machine's IPv4 address towards the outside; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation
            return socket.inet_aton(probe.getsockname()[0])
        except OSError:
            return socket.inet_aton("127.0.0.1")
