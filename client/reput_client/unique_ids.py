"""The ids that this process's producers write into `UNIQ_KEY`."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Sequence
from typing import overload

from reput_protocol.message import Message
from reput_protocol.message_id import IdRun, UniqueIdGenerator


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


class RunIds(Sequence[str]):
    """The ids of some runs, one after the other; each is written out when it is looked at."""

    __slots__ = ("_count", "_runs")

    def __init__(self, runs: Sequence[IdRun]) -> None:
        self._runs = runs
        self._count = sum(run.count for run in runs)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._count))]
        number = index + self._count if index < 0 else index
        for run in self._runs:
            if 0 <= number < run.count:
                return run.id(number)
            number -= run.count
        raise IndexError(index)


def own_address() -> bytes:
    """Return the IPv4 address that this machine would use towards the outside; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address reserved for documentation
            return socket.inet_aton(probe.getsockname()[0])
        except OSError:
            return socket.inet_aton("127.0.0.1")
