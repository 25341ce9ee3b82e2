"""Reput's client for trio and asyncio; `reput_client.blocking` is the synchronous API.

- `produce`: producers, transactions, requests, whole batches
- `consume`: group consumers, pull consumers, bulk readers
- `pop`: consumers without queues of their own, which acknowledge each message
- `admin`: administration of brokers
- `transport`: connections, routes, requests
- `security`, `received`, `serialize`, `users`, `offset_store`, `errors`

Names are imported on first use: importing this package is cheap, and the synchronous API imports no event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reput_client.exported import modules_of, resolve

if TYPE_CHECKING:
    from reput_client.admin import Admin as Admin
    from reput_client.consume.group.consumer import Consumer as Consumer
    from reput_client.consume.pull_consumer import PullConsumer as PullConsumer
    from reput_client.exported import *  # noqa: F403
    from reput_client.offset_store import GroupOffsets as GroupOffsets
    from reput_client.offset_store import LocalFileOffsetStore as LocalFileOffsetStore
    from reput_client.offset_store import OffsetStore as OffsetStore
    from reput_client.offset_store import RemoteOffsetStore as RemoteOffsetStore
    from reput_client.pop.consumer import PopConsumer as PopConsumer
    from reput_client.pop.popped import PoppedMessage as PoppedMessage
    from reput_client.produce.producer import Producer as Producer
    from reput_client.produce.transaction_checks import TransactionCheck as TransactionCheck
    from reput_client.produce.transactions import LocalTransaction as LocalTransaction
    from reput_client.produce.transactions import TransactionProducer as TransactionProducer

    __version__: str

_OWN: Final = {
    "reput_client.admin": "Admin",
    "reput_client.consume.group.consumer": "Consumer",
    "reput_client.consume.pull_consumer": "PullConsumer",
    "reput_client.offset_store": "GroupOffsets LocalFileOffsetStore OffsetStore RemoteOffsetStore",
    "reput_client.pop.consumer": "PopConsumer",
    "reput_client.pop.popped": "PoppedMessage",
    "reput_client.produce.producer": "Producer",
    "reput_client.produce.transaction_checks": "TransactionCheck",
    "reput_client.produce.transactions": "LocalTransaction TransactionProducer",
}
"""The names of this package alone, by the modules that define them."""


if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on its first use."""
        return resolve(globals(), _OWN, name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(modules_of(_OWN))
