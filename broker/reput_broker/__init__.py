"""The broker.

`broker` runs it, `serve` until a signal ends it, `background` in a thread. `server` reads requests and has
`processors`, or those of a feature (`delay`, `transactions`, `retry`, `pop`, `reply`, `staging`), answer them. They
use what a `tenure` has: `put` appends and holds the pulls that wait for messages, `groups` and `tables` are who
consumes what, `store` keeps the log. `ha` copies it, `upkeep` deletes its old files. `compose` builds all of it.
`Broker` and `BrokerConfig` load on first access: the store alone needs no event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput_broker.broker import Broker as Broker
    from reput_broker.config.model import BrokerConfig as BrokerConfig

__all__ = ["Broker", "BrokerConfig"]


if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name == "Broker":
            from reput_broker.broker import Broker

            return Broker
        if name == "BrokerConfig":
            from reput_broker.config.model import BrokerConfig

            return BrokerConfig
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
