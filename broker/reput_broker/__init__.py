"""The broker.

`broker` runs it, `serve` until a signal ends it, `background` in a thread. `server` reads requests, `processors` answer
them; `groups`, `delay`, `retry`, `transactions` and `staging` are their subjects, `put` appends, `store` keeps the log,
`upkeep` deletes, makes and syncs its files. `compose` builds all of it. `Broker` and `BrokerConfig` load on first
access: the store alone needs no event loop.
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
