"""The progress of a log that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from reput_broker.config.sections import HAConfig, StoreConfig
from reput_broker.observe.counters import Counters
from reput_broker.put.progress import LogProgress


class FakeLog:
    """A store as its progress sees it. Without a pool, what is written is committed."""

    def __init__(self, written: int = 0) -> None:
        self.written = written
        self.flushed_offset = self.dispatched_offset = 0
        self.confirm_offset: int | None = None
        self.buffers_available: int | None = None

    def when_appended(self, call: Callable[[int], object]) -> None:
        """Ignore it: the test advances `appended`."""

    @property
    def wrote_offset(self) -> int:
        """See `MessageStore`."""
        return self.written

    @property
    def committed_offset(self) -> int:
        """See `MessageStore`."""
        return self.written


def progress_of(
    store: Any, counters: Counters, store_config: StoreConfig | None = None, ha_config: HAConfig | None = None
) -> LogProgress:
    """Return the progress of `store`."""
    config: Any = SimpleNamespace(store=store_config or StoreConfig(), ha=ha_config or HAConfig())
    return LogProgress(store, config, counters)
