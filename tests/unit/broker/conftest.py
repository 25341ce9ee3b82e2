"""What several tests of the broker's services use."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from support.tasks import inline


@pytest.fixture
def by_the_clock(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> trio.testing.MockClock:
    """A clock that jumps over every wait, with worker threads run in its own time."""
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    return autojump_clock
