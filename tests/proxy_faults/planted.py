"""Bugs to plant in the proxy, so that the judge can prove that it would notice them; and `reput` with one of them.

Usage: `python planted.py NAME proxy ...`. None of this is reachable from the product.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from support.planted_bugs import Bug, table_of

if TYPE_CHECKING:
    from reput_client import SendReceipt
    from reput_protocol.errors import ReputError


def ack_not_passed_on() -> None:
    """the proxy answers each tenth acknowledgement with OK, and does not pass it on"""
    from reput_client.pop.popped import Settling

    real, numbers = Settling.ack, itertools.count(1)

    async def ack(self: Settling, messages: Sequence[Any]) -> dict[int, ReputError]:
        return {} if next(numbers) % 10 == 0 else await real(self, messages)

    Settling.ack = ack  # type: ignore[method-assign]


def send_not_passed_on() -> None:
    """the proxy answers each tenth send with OK, and does not pass it on"""
    from reput_client import Producer
    from reput_client import SendReceipt as Receipt
    from reput_protocol.codes import AckLevel

    real, numbers = Producer.send, itertools.count(1)

    async def send(self: Producer, message: Any, *more: Any, **named: Any) -> SendReceipt:
        if next(numbers) % 10:
            return await real(self, message, *more, **named)
        store_host = "127.0.0.1:10911"
        return Receipt(message.topic, 0, 0, 0, -1, store_host, AckLevel.FLUSHED, message.unique_id)

    Producer.send = send  # type: ignore[method-assign]


def send_twice() -> None:
    """the proxy passes each tenth send on twice"""
    from reput_client import Producer

    real, numbers = Producer.send, itertools.count(1)

    async def send(self: Producer, message: Any, *more: Any, **named: Any) -> SendReceipt:
        if next(numbers) % 10 == 0:
            await real(self, message, *more, **named)
        return await real(self, message, *more, **named)

    Producer.send = send  # type: ignore[method-assign]


BUGS: Final = table_of(map(Bug, (ack_not_passed_on, send_not_passed_on, send_twice)))


def command(bug: str | None) -> Sequence[str]:
    """Return what stands before the arguments of `reput`: itself, or with a planted bug."""
    return (sys.executable, "-m", "reput_cli") if bug is None else (sys.executable, __file__, bug)


def main() -> None:
    """Plant the bug, then run the command."""
    BUGS[sys.argv[1]].plant()
    sys.argv = ["reput", *sys.argv[2:]]
    from reput_cli.main import main as reput

    reput()


if __name__ == "__main__":
    main()
