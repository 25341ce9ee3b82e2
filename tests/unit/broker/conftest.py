"""What several tests of the broker's services use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio.testing

from support.tasks import threads_inline


@pytest.fixture
def by_the_clock(autojump_clock: trio.testing.MockClock) -> Iterator[trio.testing.MockClock]:
    """A clock that jumps over every wait, with worker threads run in its own time."""
    with threads_inline():
        yield autojump_clock
