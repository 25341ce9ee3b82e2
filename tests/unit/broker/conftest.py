"""What several tests of the broker's services use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing


async def inline(work: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
    """Instead of a thread, whose time the fake clock would not wait for."""
    await trio.lowlevel.checkpoint()
    return work(*arguments)


@pytest.fixture
def by_the_clock(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> trio.testing.MockClock:
    """A clock that jumps over every wait, with worker threads run in its own time."""
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    return autojump_clock
