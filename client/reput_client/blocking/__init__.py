"""The synchronous API: the same classes with blocking methods, without an event loop.

Each method runs the coroutine of `reput_client` in the calling thread (see `runtime.py`). There is no background thread
except for a group member, `PopConsumer.run`, a transaction producer, or a producer that has sent a request. Threads may
share a client. A forked child may continue to use one: it reconnects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reput_client.exported import modules_of, resolve

if TYPE_CHECKING:
    from reput_client.blocking.admin import Admin as Admin
    from reput_client.blocking.consumer import Consumer as Consumer
    from reput_client.blocking.consumer import LocalFileOffsetStore as LocalFileOffsetStore
    from reput_client.blocking.consumer import OffsetStore as OffsetStore
    from reput_client.blocking.consumer import PopConsumer as PopConsumer
    from reput_client.blocking.consumer import PoppedMessage as PoppedMessage
    from reput_client.blocking.consumer import RemoteOffsetStore as RemoteOffsetStore
    from reput_client.blocking.producer import LocalTransaction as LocalTransaction
    from reput_client.blocking.producer import Producer as Producer
    from reput_client.blocking.producer import TransactionCheck as TransactionCheck
    from reput_client.blocking.producer import TransactionProducer as TransactionProducer
    from reput_client.blocking.pull_consumer import PullConsumer as PullConsumer
    from reput_client.exported import *  # noqa: F403

    __version__: str

_OWN: Final = {
    "reput_client.blocking.admin": "Admin",
    "reput_client.blocking.consumer": (
        "Consumer LocalFileOffsetStore OffsetStore PopConsumer PoppedMessage RemoteOffsetStore"
    ),
    "reput_client.blocking.producer": "LocalTransaction Producer TransactionCheck TransactionProducer",
    "reput_client.blocking.pull_consumer": "PullConsumer",
}
"""The names of this package alone, by the modules that define them."""


if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on its first use."""
        return resolve(globals(), _OWN, name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(modules_of(_OWN))
