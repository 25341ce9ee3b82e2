"""The broker. `Broker` and `BrokerConfig` are loaded when they are asked for: the store alone needs no event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput_broker.broker import Broker as Broker
    from reput_broker.config.model import BrokerConfig as BrokerConfig

__all__ = ["Broker", "BrokerConfig"]


def __getattr__(name: str) -> Any:
    if name == "Broker":
        from reput_broker.broker import Broker

        return Broker
    if name == "BrokerConfig":
        from reput_broker.config.model import BrokerConfig

        return BrokerConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
