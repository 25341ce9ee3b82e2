"""Locks of queues that expire within seconds, for tests that kill members which consume in order.

The option `groups.lock_timeout` has a minimum that real members need; so this shortens what is beneath it, and how long
members trust a lock, in the same proportions. `python short_locks.py serve ...` is the command `reput` with such locks.
"""

from __future__ import annotations

import sys
from typing import Final

LIFETIME_S: Final = 3.0
RENEWED_S: Final = 0.7
TRUSTED_S: Final = 1.5


def shorten_in_broker(lifetime_s: float = LIFETIME_S) -> None:
    """Let the locks of a broker in this process expire after `lifetime_s`."""
    from reput_broker.groups.queue_locks import QueueLocks

    QueueLocks.lifetime_s = lifetime_s  # type: ignore[assignment,method-assign]


def shorten_in_members() -> None:
    """Renew and trust the locks of members in this process in times that fit."""
    from reput_client.consume.group import handover

    handover.RENEW_INTERVAL_S = RENEWED_S  # type: ignore[misc]
    handover.TRUSTED_S = TRUSTED_S  # type: ignore[misc]


if __name__ == "__main__":
    from reput_cli.main import main

    shorten_in_broker()
    sys.argv[0] = "reput"
    main()
