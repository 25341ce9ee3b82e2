"""A connection's permit to receive a frame beyond its share of the memory. One connection has it at a time.

It lasts as long as the received bytes take at a rate of 4 MiB a second, at most 0.25 s, and ends at a pause of 5 ms. It
starts with what has already arrived, so a slow peer has it for a moment only.
"""

from __future__ import annotations

from typing import Final

import trio

from reput_broker.server.memory import HeldBytes
from reput_broker.server.transport import Transport

_BYTES_A_S: Final = 1 << 22
_PERMIT_S: Final = 0.25
_PAUSE_S: Final = 0.005


class FramePermit:
    """The permit of one connection.

    Attributes:
        is_held: whether the connection has it.
        received_bytes: counted since it was acquired.
    """

    __slots__ = ("_began_at", "_memory", "is_held", "received_bytes")

    def __init__(self) -> None:
        self.is_held = False
        self.received_bytes = 0
        self._began_at = 0.0
        self._memory: HeldBytes | None = None

    async def acquire(self, memory: HeldBytes) -> None:
        """Wait for the permit of `memory`."""
        memory.make_room_for_large_frames()
        await memory.permit.acquire()
        self._memory = memory
        self.is_held = True
        self.received_bytes = 0
        self._began_at = trio.current_time()

    async def receive(self, transport: Transport) -> bytes | None:
        """Receive with the permit; None if it has ended before anything came."""
        permit_s = min(_PERMIT_S, self.received_bytes / _BYTES_A_S)
        with trio.move_on_at(min(self._began_at + permit_s, trio.current_time() + _PAUSE_S)):
            return await transport.receive()
        self.release()
        return None

    def release(self) -> None:
        """Give the permit back, if the connection has it."""
        if self.is_held and self._memory is not None:
            self.is_held = False
            self._memory.permit.release()
